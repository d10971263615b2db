"""How weights, and keys and values, are stored: bytes for each, and the arithmetic that each allows. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from octavo_common.errors import InvalidArgument
from octavo_common.plan.shape import ModelShape


class Arithmetic(StrEnum):
    """What a device multiplies and adds; its peak differs for each."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"
    INT8 = "int8"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFormat:
    """Bytes of weights: the layers' matrices in one form, embedding and head in another, vectors in a third.

    Bytes a weight include the scales that every group of weights has; ``row_scale_bytes`` come once for each output.
    """

    name: str
    summary: str
    matrix_bytes: float
    row_scale_bytes: int = 0
    # Embedding and output head.
    table_bytes: float
    # Norms and biases.
    vector_bytes: int
    # What the matrices are multiplied in.
    arithmetic: Arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFormat:
    """Bytes of keys and values: of one number, and of the scale that the numbers of one head and token share."""

    name: str
    value_bytes: float
    scale_bytes: int = 0


# Bytes a weight of llama.cpp's formats: 32 weights and their scales (of 16 bits) in 34, 18 and 20 bytes.
_Q8_0, _Q4_0, _Q4_1 = 34 / 32, 18 / 32, 20 / 32
_INT, _FP8, _HALF, _FULL = Arithmetic.INT8, Arithmetic.FP8, Arithmetic.BFLOAT16, Arithmetic.FLOAT32


def _weights(
    name: str, matrix: float, table: float, vector: int, arithmetic: Arithmetic, summary: str, rows: int = 0
) -> WeightFormat:
    return WeightFormat(
        name=name,
        summary=summary,
        matrix_bytes=matrix,
        row_scale_bytes=rows,
        table_bytes=table,
        vector_bytes=vector,
        arithmetic=arithmetic,
    )


WEIGHT_FORMATS = {
    found.name: found
    for found in (
        _weights("float32", 4, 4, 4, _FULL, "float32 throughout"),
        _weights("bfloat16", 2, 2, 2, _HALF, "bfloat16 throughout"),
        _weights("float16", 2, 2, 2, _HALF, "float16 throughout"),
        _weights("fp8", 1, 2, 2, _FP8, "8-bit floats, a scale a row; tables in 16 bits", rows=4),
        # As if all groups were of 32; those of 64 take 3 % less.
        _weights("w8a8", _Q8_0, _Q8_0, 4, _INT, "8 bits in groups of 32 and 64, multiplied in 8-bit integers"),
        _weights("q8_0", _Q8_0, _Q8_0, 4, _HALF, "llama.cpp's Q8_0 throughout"),
        _weights("q4_0", _Q4_0, _Q8_0, 4, _HALF, "llama.cpp's Q4_0; tables in Q8_0"),
        _weights("q4_1", _Q4_1, _Q8_0, 4, _HALF, "llama.cpp's Q4_1; tables in Q8_0"),
        _weights("w4a16", _Q4_1, _Q8_0, 4, _HALF, "Q4_1 as stored, multiplied in bfloat16; tables in Q8_0"),
        _weights("w4a8", _Q4_1, _Q8_0, 4, _INT, "Q4_1 as stored, multiplied in 8-bit integers; tables in Q8_0"),
    )
}

KV_FORMATS = {
    found.name: found
    for found in (
        KvFormat(name="float32", value_bytes=4),
        KvFormat(name="bfloat16", value_bytes=2),
        KvFormat(name="float16", value_bytes=2),
        KvFormat(name="fp8", value_bytes=1),
        KvFormat(name="int8", value_bytes=1, scale_bytes=4),
    )
}


def weight_format(name: str) -> WeightFormat:
    """The format of that name; raises InvalidArgument."""
    if name not in WEIGHT_FORMATS:
        known = ", ".join(WEIGHT_FORMATS)
        raise InvalidArgument(f"there is no precision {name!r}", hint=f"known: {known}", param="precision")
    return WEIGHT_FORMATS[name]


def kv_format(name: str) -> KvFormat:
    """The format of that name; raises InvalidArgument."""
    if name not in KV_FORMATS:
        known = ", ".join(KV_FORMATS)
        raise InvalidArgument(f"there is no KV format {name!r}", hint=f"known: {known}", param="kv_format")
    return KV_FORMATS[name]


def default_kv(stored: WeightFormat) -> KvFormat:
    """What keys and values are stored in beside such weights, unless somebody says: as Octavo's workers do it."""
    if stored.arithmetic is Arithmetic.FLOAT32:
        return KV_FORMATS["float32"]
    return KV_FORMATS["int8" if stored.arithmetic is Arithmetic.INT8 else "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Where a model's bytes are."""

    # Matrices and vectors of the layers, and the last norm.
    layers: int
    # The embedding; 0 when the head is it.
    embedding: int
    head: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.layers + self.embedding + self.head

    @property
    def per_step(self) -> int:
        """Read in a step whatever its batch: layers and head. Of the embedding only a row a token is."""
        return self.layers + self.head


def weight_bytes(shape: ModelShape, stored: WeightFormat) -> WeightBytes:
    """Bytes of a model's weights in a format.

    ``layers = matrices x matrix_bytes + rows x row_scale_bytes + vectors x vector_bytes``; head and embedding are
    ``V H x table_bytes`` each.
    """
    matrices = shape.matrix_parameters * stored.matrix_bytes
    scales = shape.num_layers * shape.layer_rows * stored.row_scale_bytes
    table = round(shape.head_parameters * stored.table_bytes)
    return WeightBytes(
        layers=round(matrices + scales + shape.vector_parameters * stored.vector_bytes),
        embedding=0 if shape.tie_embeddings else table,
        head=table,
    )
