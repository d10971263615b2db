"""A bundle's ``metadata.json``: what it holds, as values, and whether its files are there. Runs nothing.

The file is JSON with ``format`` "octavo-bundle" and ``version`` 1, or 2 where the bundle has a prefix, without which
its graphs must not be run. All files are named relative to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo_device.errors import BundleDamaged
from octavo_device.spec import GraphSpec

__all__ = [
    "METADATA_FILE",
    "Bundle",
    "BundleGraph",
    "BundlePart",
    "BundleTensor",
    "PrefixPlace",
    "PrefixTensor",
    "TablePlace",
    "read_bundle",
]

METADATA_FILE, FORMAT, VERSION, VERSION_WITH_PREFIX = "metadata.json", "octavo-bundle", 1, 2
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleTensor:
    """An input or output. An integer q of it means ``(q - zero_point) * scale``, where it has an encoding."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # numpy's name of what the graph takes and gives
    scale: float | None = None
    zero_point: int | None = None
    quantised_dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleGraph:
    """A part's graph for ``ar`` new tokens. ``file`` is None for a part that the host does."""

    ar: int
    file: str | None
    vectors: str
    inputs: tuple[BundleTensor, ...]
    outputs: tuple[BundleTensor, ...]
    extra: Mapping[str, str]  # what else the runtime has to know, as the name of a function in the file


@dataclass(frozen=True, slots=True, kw_only=True)
class BundlePart:
    """One piece of the model: ``kind`` is embedding, decoder or head."""

    name: str
    kind: str
    layers: tuple[int, int]
    graphs: Mapping[int, BundleGraph]


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlace:
    """Where the embedding's rows are: numbers of ``dtype`` and ``shape`` [V, H] from ``offset`` on, row by row.

    ``dtype`` is numpy's name, or int4: two numbers a byte, the first in the low half. The scale is one for all, or one
    for each row: float32 numbers in ``scales_file``. Without either, the numbers are the values.
    """

    file: str
    offset: int
    dtype: str
    shape: tuple[int, int]
    scale: float | None = None
    scales_file: str | None = None
    scales_offset: int = 0
    zero_point: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTensor:
    """Keys or values of one layer: numbers of ``dtype`` (numpy's name, little-endian) from ``offset`` on, in C order.

    ``key_i`` is of shape [K, 1, D, P], ``value_i`` [K, 1, P, D], for P tokens. Integers have the encoding of the cache
    inputs that they go into: q means ``(q - zero_point) * scale``.
    """

    name: str
    offset: int
    shape: tuple[int, ...]
    dtype: str
    scale: float | None = None
    zero_point: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixPlace:
    """Tokens before every sequence, and the file with their keys and values: the first columns of the past."""

    file: str
    token_ids: tuple[int, ...]
    text: str  # of the tokens, for people
    tensors: tuple[PrefixTensor, ...]
    bos_token_id: int | None = None  # the model's

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PrefixPlace:
        """The inverse of ``asdict``."""
        tensors = tuple(PrefixTensor(**{**tensor, "shape": tuple(tensor["shape"])}) for tensor in value["tensors"])
        return cls(**{**value, "token_ids": tuple(value["token_ids"]), "tensors": tensors})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """All that is known of a bundle without its weights."""

    folder: Path
    model: str
    recipe: str
    target: str
    runtime: str
    outcome: str
    spec: GraphSpec
    parts: tuple[BundlePart, ...]
    embedding: TablePlace | None
    files: Mapping[str, int]  # bytes of each
    digests: Mapping[str, str]  # sha256 in hex
    eos_token_ids: tuple[int, ...]
    prompt_prefix_ids: tuple[int, ...]  # in front of a plain prompt
    versions: Mapping[str, str]
    extra: Mapping[str, Any]  # what the runtime has to know besides
    prefix: PrefixPlace | None = None

    def path(self, name: str) -> Path:
        """Where a file is."""
        return self.folder / name

    def check_files(self, *, contents: bool = False) -> None:
        """Say which file is missing or has another length, or other ``contents`` than it was built with.

        Raises:
            BundleDamaged: The first such file.
        """
        for name, num_bytes in self.files.items():
            path = self.path(name)
            if not path.is_file():
                raise BundleDamaged(f"{name} is missing in {self.folder}", hint="copy the whole bundle again")
            if path.stat().st_size != num_bytes:
                told = f"{name} has {path.stat().st_size} bytes, and was built with {num_bytes}"
                raise BundleDamaged(told, hint="copy the whole bundle again")
            if contents and _digest(path) != self.digests[name]:
                raise BundleDamaged(f"{name} is not what was built", hint="copy the whole bundle again")


def read_bundle(folder: Path) -> Bundle:
    """Read a bundle's metadata and see that its files are there.

    Raises:
        BundleDamaged: It is no bundle, of a newer version, or not whole.
    """
    file = folder / METADATA_FILE
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "a bundle is what `octavo build ... --out DIR` makes; with several targets, one folder of DIR"
        raise BundleDamaged(f"{folder} is no bundle: it has no {METADATA_FILE}", hint=hint) from None
    except (OSError, ValueError) as error:
        raise BundleDamaged(f"{file} cannot be read: {error}", hint="copy the whole bundle again") from None
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise BundleDamaged(f"{file} is not the metadata of a bundle")
    if value.get("version") not in (VERSION, VERSION_WITH_PREFIX):
        reads = f"{VERSION} and {VERSION_WITH_PREFIX}"
        told = f"the bundle is of format version {value.get('version')}, and this runner reads {reads}"
        raise BundleDamaged(told, hint="take the runner of the release that built it")
    try:
        bundle = _bundle(folder, value)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise BundleDamaged(f"{file} is incomplete: {type(error).__name__}: {error}") from None
    bundle.check_files()
    return bundle


def _bundle(folder: Path, value: Mapping[str, Any]) -> Bundle:
    table, spec, prefix = value["embedding"], GraphSpec.from_json(value["spec"]), value.get("prefix")
    # Without its prefix the graphs' ranges are too narrow for what comes first.
    assert (prefix is not None) == (value["version"] == VERSION_WITH_PREFIX), "the prefix of the bundle"
    return Bundle(
        folder=folder,
        model=value["model"],
        recipe=value["recipe"],
        target=value["target"],
        runtime=value["runtime"],
        outcome=value["outcome"],
        spec=spec,
        parts=tuple(_part(part) for part in value["parts"]),
        embedding=None if table is None else TablePlace(**{**table, "shape": tuple(table["shape"])}),
        files={name: entry["bytes"] for name, entry in value["files"].items()},
        digests={name: entry["sha256"] for name, entry in value["files"].items()},
        eos_token_ids=tuple(value["eos_token_ids"]),
        prompt_prefix_ids=tuple(value["prompt_prefix_ids"]),
        versions=value["versions"],
        extra=value["extra"],
        prefix=None if prefix is None else _prefix(prefix, spec),
    )


def _prefix(value: Mapping[str, Any], spec: GraphSpec) -> PrefixPlace:
    place = PrefixPlace.from_json(value)
    heads, dim, length = spec.num_kv_heads, spec.head_dim, len(place.token_ids)
    shapes = {f"key_{layer}": (heads, 1, dim, length) for layer in range(spec.num_layers)}
    shapes |= {f"value_{layer}": (heads, 1, length, dim) for layer in range(spec.num_layers)}
    assert {tensor.name: tensor.shape for tensor in place.tensors} == shapes, "the prefix's keys and values"
    assert 0 < length < spec.past_length(spec.ars[0]), "room for the prefix"
    return place


def _part(value: Mapping[str, Any]) -> BundlePart:
    graphs = {int(ar): _graph(int(ar), dict(graph)) for ar, graph in value["graphs"].items()}
    return BundlePart(name=value["name"], kind=value["kind"], layers=tuple(value["layers"]), graphs=graphs)


def _graph(ar: int, value: dict[str, Any]) -> BundleGraph:
    return BundleGraph(
        ar=ar,
        file=value.pop("file", None),
        vectors=value.pop("vectors"),
        inputs=tuple(_tensor(tensor) for tensor in value.pop("inputs")),
        outputs=tuple(_tensor(tensor) for tensor in value.pop("outputs")),
        extra=value,
    )


def _tensor(value: Mapping[str, Any]) -> BundleTensor:
    return BundleTensor(**{**value, "shape": tuple(value["shape"])})


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
