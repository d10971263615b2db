"""How each tensor is quantised, and AIMET's JSON of it in the schemas 1.0.0 and 2.0.0. Knows no graph.

Schema 1.0.0 counts integers from zero and adds an offset: ``x = (q + offset) * scale``, so offset = lowest integer of
the grid - zero point. Schema 2.0.0 is ONNX's: ``x = (q - zero_point) * scale``, no zero point where it is 0 and signed.
Shapes: O output channels, B blocks of a channel.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo_edge.quant.grid import GRIDS, INT8, Floats, IntGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class PerTensor:
    """One scale and zero point for a tensor."""

    grid: IntGrid
    scale: float
    zero_point: int

    @property
    def symmetric(self) -> bool:
        """Whether negative and positive numbers have the same steps around 0."""
        return self.grid.signed and self.zero_point == 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerChannel:
    """A symmetric grid with a scale for each index of an axis."""

    grid: IntGrid
    axis: int
    scales: Floats  # [O]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerBlock:
    """A symmetric grid with a scale for each channel and each block of ``block_size`` inputs along ``axis``."""

    grid: IntGrid
    axis: int
    block_size: int
    scales: Floats  # [O, B]
    rank: int  # of the tensor: schema 2.0.0 writes scales with as many dimensions


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lpbq:
    """Blocks whose scales are small integers times a channel's scale: 4-bit blocks sit on a channel's 8-bit grid."""

    grid: IntGrid
    axis: int
    block_size: int
    int_scales: NDArray[np.uint8]  # [O, B], 1 to 2 ** (8 - bits)
    channel_scales: Floats  # [O]
    rank: int
    decompressed: IntGrid = INT8

    @property
    def scales(self) -> Floats:
        """The scale of each block, [O, B]."""
        return self.int_scales.astype(np.float32) * self.channel_scales[:, None]


ParamEncoding = PerTensor | PerChannel | PerBlock | Lpbq


@dataclass(frozen=True, slots=True, kw_only=True)
class Encodings:
    """The encodings of a graph by tensor name."""

    activations: Mapping[str, PerTensor]
    params: Mapping[str, ParamEncoding]


def write_v1(path: Path, encodings: Encodings, *, producer: Mapping[str, str], activation_bits: int) -> None:
    """Write schema 1.0.0."""
    head = {
        "version": "1.0.0",
        "producer": dict(producer),
        "quantizer_args": {
            "activation_bitwidth": activation_bits,
            "dtype": "int",
            "is_symmetric": True,
            "param_bitwidth": min((encoding.grid.bits for encoding in encodings.params.values()), default=8),
            "per_channel_quantization": True,
            "quant_scheme": "min_max",
        },
    }
    lists = {"activation_encodings": encodings.activations, "param_encodings": encodings.params}
    _write(path, head, {key: (_v1(*entry) for entry in values.items()) for key, values in lists.items()})


def write_v2(path: Path, encodings: Encodings, *, producer: Mapping[str, str]) -> None:
    """Write schema 2.0.0."""
    every = {**encodings.activations, **encodings.params}
    head = {"version": "2.0.0", "producer": dict(producer)}
    _write(path, head, {"encodings": (_v2(*entry) for entry in every.items())})


def _write(path: Path, head: Mapping[str, Any], lists: Mapping[str, Iterable[Mapping[str, Any]]]) -> None:
    """One object of JSON, an entry of a list at a time: as Python's numbers all would be larger than the weights."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(head)[:-1])
        for key, entries in lists.items():
            file.write(f", {json.dumps(key)}: [")
            for index, entry in enumerate(entries):
                file.write(f"{', ' if index else ''}{json.dumps(entry)}")
            file.write("]")
        file.write("}")


def read(path: Path) -> Encodings:
    """Read either schema. Schema 2.0.0 does not tell parameters from activations: those with an axis are parameters.

    Raises:
        ValueError: Another schema, or an entry that is not one of it.
    """
    document = json.loads(path.read_text())
    version = document.get("version")
    try:
        if version == "1.0.0":
            activations = {e["name"]: _from_v1(e) for e in document["activation_encodings"] if e["dtype"] == "INT"}
            params = {e["name"]: _from_v1(e) for e in document["param_encodings"] if e["dtype"] == "INT"}
        elif version == "2.0.0":
            every = {e["name"]: _from_v2(e) for e in document["encodings"]}
            activations = {name: e for name, e in every.items() if isinstance(e, PerTensor)}
            params = {name: e for name, e in every.items() if not isinstance(e, PerTensor)}
        else:
            raise ValueError(f"{path} has encodings of schema {version!r}, not 1.0.0 or 2.0.0")
    except (KeyError, TypeError, IndexError) as e:
        raise ValueError(f"{path} is no encodings file of schema {version}: {e!r}") from e
    per_tensor = {name: e for name, e in activations.items() if isinstance(e, PerTensor)}
    return Encodings(activations=per_tensor, params=params)


def _v1(name: str, encoding: ParamEncoding) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "dtype": "INT", "bw": encoding.grid.bits}
    match encoding:
        case PerTensor():
            offset = float(encoding.grid.lowest - encoding.zero_point)
            entry |= {"is_sym": encoding.symmetric, "enc_type": "PER_TENSOR", "scale": [encoding.scale]}
            return entry | {"offset": [offset]}
        case PerChannel():
            scales, kind = encoding.scales, "PER_CHANNEL"
        case PerBlock():
            scales, kind = encoding.scales.reshape(-1), "PER_BLOCK"
            entry["block_size"] = encoding.block_size
        case Lpbq():
            scales, kind = encoding.channel_scales, "LPBQ"
            entry |= {"bw": encoding.decompressed.bits, "compressed_bw": encoding.grid.bits}
            entry |= {"block_size": encoding.block_size, "per_block_int_scale": _numbers(encoding.int_scales)}
    lowest = encoding.decompressed.lowest if isinstance(encoding, Lpbq) else encoding.grid.lowest
    entry |= {"is_sym": True, "enc_type": kind, "scale": _numbers(scales)}
    return entry | {"offset": [float(lowest)] * len(scales)}


def _v2(name: str, encoding: ParamEncoding) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "output_dtype": encoding.grid.name}
    match encoding:
        case PerTensor():
            entry["y_scale"] = encoding.scale
            return entry if encoding.symmetric else entry | {"y_zero_point": encoding.zero_point}
        case PerChannel():
            return entry | {"axis": encoding.axis, "y_scale": _numbers(encoding.scales)}
        case PerBlock():
            shaped = _blocks_of(encoding.scales, encoding.axis, encoding.rank)
            return entry | {"axis": encoding.axis, "block_size": encoding.block_size, "y_scale": shaped.tolist()}
        case Lpbq():
            blocks = _blocks_of(encoding.int_scales, encoding.axis, encoding.rank)
            channels = _blocks_of(encoding.channel_scales[:, None], encoding.axis, encoding.rank)
            entry |= {"axis": encoding.axis, "block_size": encoding.block_size}
            return entry | {"per_block_int_scale": blocks.tolist(), "per_channel_float_scale": channels.tolist()}


def _from_v1(entry: dict[str, Any]) -> ParamEncoding:
    scales = np.asarray(entry["scale"], dtype=np.float32)
    match entry["enc_type"]:
        case "PER_TENSOR":
            grid = GRIDS[f"{'int' if entry['is_sym'] else 'uint'}{entry['bw']}"]
            return PerTensor(grid=grid, scale=float(scales[0]), zero_point=grid.lowest - int(entry["offset"][0]))
        case "PER_CHANNEL":
            return PerChannel(grid=GRIDS[f"int{entry['bw']}"], axis=0, scales=scales)
        case "LPBQ":
            int_scales = np.asarray(entry["per_block_int_scale"], dtype=np.uint8).reshape(len(scales), -1)
            grid, size = GRIDS[f"int{entry['compressed_bw']}"], int(entry["block_size"])
            return Lpbq(grid=grid, axis=1, block_size=size, int_scales=int_scales, channel_scales=scales, rank=4)
    raise ValueError(f"{entry['name']}: encodings of type {entry['enc_type']} cannot be read without the graph")


def _from_v2(entry: dict[str, Any]) -> ParamEncoding:
    grid = GRIDS[entry["output_dtype"]]
    if "axis" not in entry:
        return PerTensor(grid=grid, scale=float(entry["y_scale"]), zero_point=int(entry.get("y_zero_point", 0)))
    axis = int(entry["axis"])
    if "block_size" not in entry:
        return PerChannel(grid=grid, axis=axis, scales=np.asarray(entry["y_scale"], dtype=np.float32))
    size = int(entry["block_size"])
    if "y_scale" in entry:
        scales, rank = _matrix_of(entry["y_scale"], axis, np.float32)
        return PerBlock(grid=grid, axis=axis, block_size=size, scales=scales, rank=rank)
    int_scales, rank = _matrix_of(entry["per_block_int_scale"], axis, np.uint8)
    channels, _ = _matrix_of(entry["per_channel_float_scale"], axis, np.float32)
    return Lpbq(
        grid=grid, axis=axis, block_size=size, int_scales=int_scales, channel_scales=channels.reshape(-1), rank=rank
    )


def _blocks_of(scales_OB: NDArray[Any], axis: int, rank: int) -> NDArray[Any]:
    """[O, B] as the scale tensor of a weight: blocks lie on ``axis``, channels on the other of the first two."""
    matrix = scales_OB if axis == 1 else scales_OB.T
    return matrix.reshape(*matrix.shape, *([1] * (rank - 2)))


def _matrix_of(value: Any, axis: int, dtype: Any) -> tuple[NDArray[Any], int]:
    array = np.asarray(value, dtype=dtype)
    matrix = array.reshape(array.shape[:2])
    return (matrix if axis == 1 else np.ascontiguousarray(matrix.T)), array.ndim


def _numbers(values: NDArray[Any]) -> list[Any]:
    return values.reshape(-1).tolist()
