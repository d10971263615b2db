"""What stages hand to each other: directories that never change, named by what went into them. Knows no stage.

Every kind of artifact is a class of its own, so that stages in a wrong order are a type error.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from octavo_common.errors import InvalidArgument

_CHUNK_BYTES = 1 << 20
# What makes a checkpoint; a README beside it does not change what is built.
_CHECKPOINT_SUFFIXES = frozenset({".safetensors", ".json", ".model", ".txt", ".jinja"})

# Files of a model's directory that every artifact carries on.
CARRIED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A directory (for a source also a file) and the 64 hex digits that name its content."""

    path: Path
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceModel(Artifact):
    """A checkpoint as users have it: a Hugging Face directory or one GGUF file, with its tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedModel(Artifact):
    """``config.json``, ``weights.safetensors`` in float32 and the tokenizer's files: a model of a known family."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimisedGraph(Artifact):
    """``spec.json``, one ``arN.onnx`` for every number N of new tokens, and the ``weights.data`` that all point at.

    With the tokenizer's files, as all artifacts that come after the source.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedGraph(Artifact):
    """As OptimisedGraph with quantised weights between Q and DQ, and the encodings in both of AIMET's formats.

    With ``prefix.bin`` and ``prefix.json``, which says what is in it, if the recipe has a prefix.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel(Artifact):
    """``manifest.json``, the parts' graphs in QDQ form with the ``weights.data`` that all point at, their encodings in
    both of AIMET's formats, ``vectors/`` with every input and output of every graph, and the prefix's file if any.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledBlob(Artifact):
    """``blob/``: what a target's tool-chain made, and ``blob.json`` that says which file is what. ``export/``: what
    the ExportedModel has besides graphs and weights, and the embedding's table. ``compiled.json``: with what.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle(Artifact):
    """All that a device needs: ``metadata.json``, the binaries, the embedding table, tokenizer and test vectors."""


def source_model(path: Path) -> SourceModel:
    """The checkpoint at a path, named by the sha256 over its files.

    Raises:
        InvalidArgument: There is no checkpoint.
    """
    if path.is_file():
        return SourceModel(path=path.resolve(), digest=_tree_digest({"model": path}))
    if not path.is_dir():
        raise InvalidArgument(
            f"there is no model at {path}", hint="give a Hugging Face directory or a .gguf file", param="model"
        )
    files = {file.name: file for file in path.iterdir() if file.suffix in _CHECKPOINT_SUFFIXES and file.is_file()}
    if "config.json" not in files or not any(name.endswith(".safetensors") for name in files):
        raise InvalidArgument(
            f"{path} is no checkpoint: it needs config.json and .safetensors files",
            hint="give a Hugging Face directory or a .gguf file",
            param="model",
        )
    return SourceModel(path=path.resolve(), digest=_tree_digest(files))


def carry(source: Path, out: Path) -> None:
    """Copy what belongs to a model in every form: tokenizer, chat template and settings, as far as it has them."""
    for name in CARRIED:
        if (source / name).is_file():
            shutil.copyfile(source / name, out / name)


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def joined_digest(*parts: str) -> str:
    """sha256 over texts, in hex; other texts or another order give another digest."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def _tree_digest(files: dict[str, Path]) -> str:
    return joined_digest(*(f"{name}\0{file_digest(files[name])}" for name in sorted(files)))
