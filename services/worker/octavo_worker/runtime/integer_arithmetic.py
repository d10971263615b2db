"""Products of integers in groups, keys and values in int8: the modes w8a8 and w4a8. See `kernels.integer`."""

from __future__ import annotations

import numpy as np

from octavo_worker.kernels import attend_int8, attention_int8
from octavo_worker.kernels.amx import SIDE
from octavo_worker.kernels.embedding import embedding_stage
from octavo_worker.kernels.grouped_matmul import matmul_stage
from octavo_worker.kernels.integer import GROUP
from octavo_worker.kernels.program import Stage
from octavo_worker.kernels.quantize import gate_quantize_stage, norm_quantize_stage, quantize_stage
from octavo_worker.models.base import Floats
from octavo_worker.models.packed import Matrix
from octavo_worker.models.packed_weights import LinearWeights
from octavo_worker.runtime.arithmetic import Attention


class IntegerRows:
    """Quantised rows of one width."""

    def __init__(self, num_rows: int, width: int, num_threads: int) -> None:
        self._width = width
        # The matrix unit reads blocks of rows, whole.
        self._ints = np.zeros((-(-num_rows // SIDE) * SIDE, width), np.int8)
        # As many as any format wants.
        self._scales = np.zeros((num_rows, 2 * width // GROUP), np.float32)
        self._sums = np.zeros((num_rows, 2 * width // GROUP), np.int32)
        self._scratch = np.zeros((num_threads, width), np.float32)
        self._places = {
            "ints": self._ints.ctypes.data,
            "scales": self._scales.ctypes.data,
            "sums": self._sums.ctypes.data,
        }

    def embed(self, matrix: Matrix, out: Floats) -> list[Stage]:
        """Rows of the embedding."""
        weights = matrix.data.ctypes.data
        return [embedding_stage(matrix.form, weights=weights, width=self._width, out=out.ctypes.data)]

    def take(self, x_TD: Floats, matrix: Matrix) -> Stage:
        """From rows as they are."""
        return quantize_stage(
            x=x_TD.ctypes.data, stride=x_TD.shape[1], width=self._width, form=matrix.form, **self._places
        )

    def norm(self, x_TD: Floats, weight_D: Floats, eps: float, matrix: Matrix) -> Stage:
        """From the root mean square norm of rows."""
        return norm_quantize_stage(
            x=x_TD.ctypes.data,
            stride=x_TD.shape[1],
            width=self._width,
            form=matrix.form,
            weight=weight_D.ctypes.data,
            eps=eps,
            scratch=self._scratch.ctypes.data,
            **self._places,
        )

    def gate(self, gate_up_TI: Floats, matrix: Matrix) -> Stage:
        """From silu(gate) * up."""
        return gate_quantize_stage(
            x=gate_up_TI.ctypes.data,
            width=self._width,
            form=matrix.form,
            scratch=self._scratch.ctypes.data,
            **self._places,
        )

    def matmul(self, linear: LinearWeights, out: Floats, *, adds: bool = False) -> Stage:
        """Their product with a matrix."""
        matrix = linear.matrix
        return matmul_stage(
            matrix.form,
            weights=matrix.data.ctypes.data,
            num_inputs=matrix.num_inputs,
            num_outputs=matrix.padded_outputs,
            out=out.ctypes.data,
            stride=out.shape[1],
            adds=adds,
            bias=0 if linear.bias is None else linear.bias.ctypes.data,
            **self._places,
        )


class IntegerArithmetic:
    """Everything in integers but norms, angles, gates and softmax."""

    attention_name = "int8"
    numerics = "kv8-mixed-p16/mixed-32-64-groups-16"
    attention = Attention(
        mixes_keys=True,
        block_bytes=attention_int8.block_bytes,
        scratch_bytes=attend_int8.scratch_bytes,
        stage=attention_int8.attention_stage,
    )

    def rows(self, num_rows: int, width: int, num_threads: int) -> IntegerRows:
        """Room for rows."""
        return IntegerRows(num_rows, width, num_threads)
