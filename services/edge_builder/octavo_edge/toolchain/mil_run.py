"""Runs a program of Core ML's (MIL) in torch: what it computes is compared here, though only Apple's devices load it.

Values are rounded to the type that the program gives each of them, and sums inside an operation are float32, as the
neural engine and the CPU have them at best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["UnknownOperation", "run_function"]


class UnknownOperation(NotImplementedError):
    """An operation that is not known here; the message has its name and type."""


def run_function(function: Any, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Outputs by name, as float32.

    Raises:
        UnknownOperation: An operation that is none of a decoder's.
    """
    values: dict[str, Any] = {}
    for name, var in function.inputs.items():
        values[name] = _rounded(torch.from_numpy(np.asarray(feeds[name])), var)
    for op in function.operations:
        if op.op_type == "const":
            values[op.outputs[0].name] = _constant(op.outputs[0].val)
            continue
        rule = _RULES.get(op.op_type)
        if rule is None:
            raise UnknownOperation(f"{op.name} ({op.op_type})")
        given = {key: _given(value, values) for key, value in op.inputs.items() if value is not None}
        made = rule(given)
        for var, value in zip(op.outputs, made if isinstance(made, (list, tuple)) else [made], strict=True):
            values[var.name] = _rounded(value, var)
    return {var.name: values[var.name].numpy() for var in function.outputs}


def _given(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return [values[entry.name] for entry in value]
    return values[value.name]


def _constant(value: Any) -> Any:
    """Numbers and arrays of floats as tensors; what tells an operation how to work stays as it is."""
    array = np.asarray(value)
    if array.dtype.kind == "f":
        return torch.from_numpy(array.astype(np.float32))
    return value


def _rounded(value: Tensor, var: Any) -> Tensor:
    """To the precision of the program's type, held as float32 (integers as they are)."""
    if not value.is_floating_point():
        return value
    return value.half().float() if "fp16" in _type_name(var) else value.float()


def _type_name(var: Any) -> str:
    from coremltools.converters.mil.mil import types

    return types.builtin_to_string(var.dtype)


def _conv(given: Mapping[str, Any]) -> Tensor:
    assert given["weight"].shape[2:] == (1, 1)
    return F.conv2d(given["x"], given["weight"], given.get("bias"))


def _split(given: Mapping[str, Any]) -> list[Tensor]:
    sizes = given.get("split_sizes")
    if sizes is None:
        return list(given["x"].chunk(int(given["num_splits"]), dim=int(given["axis"])))
    return list(given["x"].split([int(size) for size in sizes], dim=int(given["axis"])))


def _matmul(given: Mapping[str, Any]) -> Tensor:
    x, y = given["x"], given["y"]
    return torch.matmul(
        x.transpose(-1, -2) if given.get("transpose_x") else x, y.transpose(-1, -2) if given.get("transpose_y") else y
    )


def _dequantised(given: Mapping[str, Any]) -> Tensor:
    integers, scale = torch.from_numpy(np.asarray(given["data"]).astype(np.float32)), given["scale"]
    for axis, (whole, blocks) in enumerate(zip(integers.shape, scale.shape, strict=True)):
        scale = scale.repeat_interleave(whole // blocks, dim=axis)
    return integers * scale


def _axes(given: Mapping[str, Any]) -> list[int]:
    return [int(axis) for axis in given["axes"]]


def _squeezed(given: Mapping[str, Any]) -> Tensor:
    return given["x"].squeeze(tuple(_axes(given))) if "axes" in given else given["x"].squeeze()


def _expanded(given: Mapping[str, Any]) -> Tensor:
    x = given["x"]
    for axis in sorted(_axes(given)):
        x = x.unsqueeze(axis)
    return x


_RULES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "add": lambda g: g["x"] + g["y"],
    "cast": lambda g: g["x"],
    "concat": lambda g: torch.cat(list(g["values"]), dim=int(g["axis"])),
    "constexpr_blockwise_shift_scale": _dequantised,
    "conv": _conv,
    "expand_dims": _expanded,
    "gather": lambda g: g["x"][torch.as_tensor(np.asarray(g["indices"])).long()],
    "matmul": _matmul,
    "mul": lambda g: g["x"] * g["y"],
    "pow": lambda g: g["x"] ** g["y"],
    "reduce_mean": lambda g: g["x"].mean(_axes(g), keepdim=bool(g["keep_dims"])),
    "reshape": lambda g: g["x"].reshape([int(size) for size in g["shape"]]),
    "rsqrt": lambda g: torch.rsqrt(g["x"] + g["epsilon"]),
    "sigmoid": lambda g: torch.sigmoid(g["x"]),
    "silu": lambda g: F.silu(g["x"]),
    "softmax": lambda g: torch.softmax(g["x"], dim=int(g["axis"])),
    "split": _split,
    "squeeze": _squeezed,
    "sub": lambda g: g["x"] - g["y"],
    "transpose": lambda g: g["x"].permute([int(axis) for axis in g["perm"]]),
}
