"""What a config.json means by saying nothing: the defaults of the files' own library, by family. Pure data.

The worker that loads a model and the planner that only sizes it must not differ here, so both look it up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# Of a window that is used but not named.
WINDOW = 4096
# Qwen: layers from this one on have the window.
FULL_LAYERS = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """One family's defaults."""

    context_length: int
    # None: the hidden size divided by the heads.
    head_dim: int | None = None


SILENT: Mapping[str, Silent] = {
    "llama": Silent(context_length=2048),
    "mistral": Silent(context_length=131_072),
    "qwen2": Silent(context_length=32_768),
    "qwen3": Silent(context_length=32_768, head_dim=128),
}
