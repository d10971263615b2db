"""Reading a checkpoint, a Hugging Face directory or a GGUF file, as transformers reads it: float32, and complete.

transformers fills in at random what a file lacks; here that is an error.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from octavo_common.errors import InvalidArgument
from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.gguf import DamagedTokenizer, bundle_from_metadata
from octavo_edge.models.families import FAMILIES, check_supported

__all__ = ["CorruptCheckpoint", "LoadedSource", "check_source", "gguf_tokenizer", "load_source", "read_tokenizer"]

# What damaged or truncated files make transformers, safetensors and gguf raise.
_DAMAGE = (OSError, ValueError, RuntimeError, KeyError, IndexError, TypeError, struct.error, SafetensorError)
# What transformers would fill in with the sizes of the family's usual model, however large that is.
_SIZES = ("hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "vocab_size")
# Old checkpoints carry what follows from the configuration.
_DERIVED = ".rotary_emb.inv_freq"


class CorruptCheckpoint(InvalidArgument):
    """The checkpoint's files are damaged or incomplete."""

    code = "CORRUPT_CHECKPOINT"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSource:
    """A checkpoint in memory, with the tokenizer it came with."""

    model: PreTrainedModel
    tokenizer: TokenizerBundle


def check_source(path: Path) -> int:
    """Refuse what can be refused before any weight is read; gives the model's longest context.

    Raises:
        UnsupportedModel: The architecture or a part of it is not supported.
        CorruptCheckpoint: The configuration cannot be read.
    """
    if path.is_dir():
        config = _read_config(path / "config.json")
        check_supported(config, where=path.name)
        if absent := [name for name in _SIZES if not isinstance(config.get(name), int)]:
            raise CorruptCheckpoint(f"{path.name}: config.json does not say {', '.join(absent)}")
        # Where a file says nothing the family's own limit is asked for when the model is loaded.
        limit = config.get("max_position_embeddings")
    else:
        fields = _gguf_fields(path)
        architecture = fields.get("general.architecture")
        if architecture not in FAMILIES:
            check_supported({"model_type": architecture}, where=path.name)
        limit = fields.get(f"{architecture}.context_length")
    return limit if isinstance(limit, int) else 1 << 30


def load_source(path: Path) -> LoadedSource:
    """The model in float32 and its tokenizer.

    Raises:
        CorruptCheckpoint: A weight is missing, has another shape than the configuration says, or is no finite number.
        UnsupportedTokenizer: There is no usable tokenizer.
    """
    tokenizer = read_tokenizer(path)
    try:
        with _no_progress_bars():
            place, extra = (path, {}) if path.is_dir() else (path.parent, _gguf_arguments(path))
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                place,
                dtype=torch.float32,
                attn_implementation="eager",
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are told below, by name
                **extra,
            )
    except _DAMAGE as error:
        raise CorruptCheckpoint(f"{path.name} cannot be loaded: {_first_line(error)}") from error
    model, told = loaded
    for kind, what in (
        ("missing_keys", "lacks"),
        ("mismatched_keys", "has another shape than its configuration says for"),
        ("unexpected_keys", "has beyond its architecture"),
    ):
        names = sorted(str(entry[0] if isinstance(entry, tuple) else entry) for entry in told[kind])
        names = [name for name in names if not name.endswith(_DERIVED)]
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CorruptCheckpoint(f"{path.name} {what} {', '.join(names[:3])}{more}")
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter.sum(dtype=torch.float64))):
            raise CorruptCheckpoint(f"{path.name}: {name} has values that are no finite numbers")
    return LoadedSource(model=model.eval(), tokenizer=tokenizer)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """The builder tells its progress itself."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def read_tokenizer(path: Path) -> TokenizerBundle:
    """The tokenizer of a checkpoint, without its weights.

    Raises:
        CorruptCheckpoint: A GGUF file's entries do not fit each other.
        UnsupportedTokenizer: There is no usable tokenizer.
    """
    return TokenizerBundle.from_directory(path) if path.is_dir() else gguf_tokenizer(path)


def gguf_tokenizer(path: Path) -> TokenizerBundle:
    """The tokenizer of a GGUF file, as the worker builds it: transformers' conversion forgets how some cut digits.

    Raises:
        CorruptCheckpoint: Its entries do not fit each other.
        UnsupportedTokenizer: It cannot be built exactly.
    """
    try:
        return bundle_from_metadata(_gguf_fields(path, arrays=True), where=path)
    except DamagedTokenizer as error:
        raise CorruptCheckpoint(error.message) from error


def _read_config(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptCheckpoint(f"{file.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise CorruptCheckpoint(f"{file.name} is not a JSON object")
    return value


def _gguf_arguments(path: Path) -> dict[str, Any]:
    """What from_pretrained is told of a GGUF file: the size of heads too, which its own reading leaves out."""
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    fields = _gguf_fields(path)
    head_dim = fields.get(f"{fields.get('general.architecture')}.attention.key_length")
    if head_dim is not None:
        config.head_dim = int(head_dim)
    return {"gguf_file": path.name, "config": config}


def _gguf_fields(path: Path, *, arrays: bool = False) -> dict[str, Any]:
    """The metadata: numbers and texts, and lists of them if asked for, which takes a second for a vocabulary."""
    try:
        reader = GGUFReader(path)
        return {name: field.contents() for name, field in reader.fields.items() if arrays or len(field.types) == 1}
    except _DAMAGE as error:
        raise CorruptCheckpoint(f"{path.name} is no GGUF file: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:300]
