"""What an adapted decoder is made of, as the artifact's `config.json` holds it. Knows no torch and no checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from octavo_common.errors import InvalidArgument
from octavo_device.spec import GraphSpec, RopeSpec

__all__ = ["AdaptedConfig", "AttentionForm", "UnsupportedModel", "read_config", "write_config"]

# "mha": one projection for all heads; "sha": a projection and an attention for each head.
AttentionForm = Literal["mha", "sha"]


class UnsupportedModel(InvalidArgument):
    """The checkpoint has something that the adapted decoder does not."""

    code = "UNSUPPORTED_MODEL"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedConfig:
    """Shape and kind of a decoder."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_norms: bool  # whether each head of q and k is normalised before it rotates
    tied_embeddings: bool
    rope: RopeSpec
    context_length: int  # the longest that the model takes
    window: int | None  # of sliding attention, the newest token counted; of all layers alike
    attention: AttentionForm = "mha"

    def graph_spec(self, *, context_length: int, ars: tuple[int, ...]) -> GraphSpec:
        """The interface of this decoder's graphs.

        Raises:
            InvalidArgument: The context is longer than the model's, or has no room for `ars` and a past.
        """
        check_context(context_length, limit=self.context_length)
        ordered = tuple(sorted(set(ars), reverse=True))
        if not ordered or ordered[-1] < 1 or ordered[0] >= context_length:
            raise InvalidArgument(
                f"graphs for {', '.join(map(str, ars)) or 'no'} new tokens do not fit a context of {context_length}",
                hint=f"each is at least 1 and at most {context_length - 1}, which leaves room for a past",
                param="ar",
            )
        return GraphSpec(
            context_length=context_length,
            ars=ordered,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            rope=self.rope,
            window=self.window,
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> AdaptedConfig:
        """The inverse of `asdict`."""
        rope = dict(value["rope"])
        rope["inverse_frequencies"] = tuple(rope["inverse_frequencies"])
        return cls(**{**value, "rope": RopeSpec(**rope)})


def check_context(context_length: int, *, limit: int) -> None:
    """Refuse a context that the model was not made for.

    Raises:
        InvalidArgument: `context_length` is over `limit`, or under 2.
    """
    if not 2 <= context_length <= limit:
        raise InvalidArgument(
            f"a context of {context_length} tokens was asked for, and the model takes 2 to {limit}",
            hint="ask for a shorter context",
            param="context_length",
        )


def read_config(folder: Path) -> AdaptedConfig:
    """The config of an AdaptedModel's folder."""
    return AdaptedConfig.from_json(json.loads((folder / "config.json").read_text()))


def write_config(folder: Path, config: AdaptedConfig) -> None:
    """Write `config.json` into an AdaptedModel's folder."""
    (folder / "config.json").write_text(json.dumps(asdict(config), indent=1) + "\n")
