"""Products of bfloat16 with float32 sums, keys and values in bfloat16: the modes bfloat16 and w4a16.

Both give the same bits: weights that are stored in 4 or 8 bits are unpacked and rounded beside the product, to what the
other mode keeps in memory. See `kernels.bfloat16` for the order of the sums.
"""

from __future__ import annotations

import numpy as np

from octavo_worker.kernels import attend_bf16, attention_bf16
from octavo_worker.kernels.bfloat16 import BFLOAT16
from octavo_worker.kernels.embedding import embedding_stage
from octavo_worker.kernels.float_matmul import float_matmul_stage, scratch_bytes
from octavo_worker.kernels.program import Stage
from octavo_worker.kernels.round_rows import gate_round_stage, norm_round_stage, round_stage
from octavo_worker.models.base import Floats
from octavo_worker.models.packed import Matrix
from octavo_worker.models.packed_weights import LinearWeights
from octavo_worker.runtime.arithmetic import Attention

# The matrix unit reads rows by 16.
_ROWS_AT_ONCE = 16


class ShortRows:
    """Rounded rows of one width, as float32 and as bfloat16."""

    def __init__(self, num_rows: int, width: int, num_threads: int) -> None:
        self._width = width
        self._floats = np.zeros((num_rows, width), np.float32)
        self._shorts = np.zeros((-(-num_rows // _ROWS_AT_ONCE) * _ROWS_AT_ONCE, width), np.uint16)
        self._scratch = np.zeros(num_threads * scratch_bytes(width) + 64, np.uint8)
        self._places = {"floats": self._floats.ctypes.data, "shorts": self._shorts.ctypes.data}

    def embed(self, matrix: Matrix, out: Floats) -> list[Stage]:
        """Rows of the embedding, rounded."""
        weights, place = matrix.data.ctypes.data, out.ctypes.data
        stages = [embedding_stage(matrix.form, weights=weights, width=self._width, out=place)]
        if matrix.form != BFLOAT16:
            rows = {"x": place, "stride": self._width, "width": self._width, "floats": place}
            stages.append(round_stage(**rows, shorts=self._shorts.ctypes.data))
        return stages

    def take(self, x_TD: Floats, matrix: Matrix) -> Stage:
        """From rows as they are."""
        return round_stage(x=x_TD.ctypes.data, stride=x_TD.shape[1], width=self._width, **self._places)

    def norm(self, x_TD: Floats, weight_D: Floats, eps: float, matrix: Matrix) -> Stage:
        """From the root mean square norm of rows."""
        return norm_round_stage(
            x=x_TD.ctypes.data,
            stride=x_TD.shape[1],
            width=self._width,
            weight=weight_D.ctypes.data,
            eps=eps,
            **self._places,
        )

    def gate(self, gate_up_TI: Floats, matrix: Matrix) -> Stage:
        """From silu(gate) * up."""
        return gate_round_stage(x=gate_up_TI.ctypes.data, width=self._width, **self._places)

    def matmul(self, linear: LinearWeights, out: Floats, *, adds: bool = False) -> Stage:
        """Their product with a matrix."""
        matrix = linear.matrix
        return float_matmul_stage(
            matrix.form,
            weights=matrix.data.ctypes.data,
            num_inputs=matrix.num_inputs,
            num_outputs=matrix.padded_outputs,
            out=out.ctypes.data,
            stride=out.shape[1],
            # Rows of a whole cache line each.
            scratch=-(-self._scratch.ctypes.data // 64) * 64,
            adds=adds,
            bias=0 if linear.bias is None else linear.bias.ctypes.data,
            **self._places,
        )


class ShortArithmetic:
    """Everything that is multiplied in bfloat16; residual, norms, angles, gates and sums in float32."""

    attention_name = "bfloat16"
    numerics = "kv16/pairs"
    attention = Attention(
        mixes_keys=False,
        block_bytes=attention_bf16.block_bytes,
        scratch_bytes=attend_bf16.scratch_bytes,
        stage=attention_bf16.attention_stage,
    )

    def rows(self, num_rows: int, width: int, num_threads: int) -> ShortRows:
        """Room for rows."""
        return ShortRows(num_rows, width, num_threads)
