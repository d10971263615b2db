"""Core ML's program of a part (MIL): made from the part in torch, with our integers for its weights, and read back.

coremltools would find scales of its own; here the integers that the recipe gave stay, with their scales as float16.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from octavo_edge.graph.manifest import PartGraph
from octavo_edge.models.parts import DecoderPart
from octavo_edge.quant.encodings import PerChannel, PerTensor
from octavo_edge.quant.plan import QuantisedWeight
from octavo_edge.quant.reading import Parameter

__all__ = ["Compressed", "can_compress", "compressed", "compressed_weights", "join", "package", "read_program"]

_DTYPES = {"int64": np.int32, "float32": np.float16}
_COMPRESSED_BITS = (4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """A weight as the package has it: integers, and a scale for each block of them."""

    integers: NDArray[np.int8]
    scale: NDArray[np.float16]


def package(
    part: DecoderPart, graph: PartGraph, parameters: Mapping[str, Parameter], path: Path, *, float32_norms: bool
) -> None:
    """Write one graph of a part as a package with one function, float16 but for the inside of norms if asked."""
    with _quiet():
        ct = _module("coremltools")

        arguments = tuple(torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype)) for tensor in graph.inputs)
        program = torch.export.export(part, arguments).run_decompositions({})
        target = {"minimum_deployment_target": ct.target.iOS18, "compute_units": ct.ComputeUnit.CPU_AND_NE}
        converted: Any = ct.convert(
            program,
            inputs=[ct.TensorType(name=t.name, shape=t.shape, dtype=_DTYPES[t.dtype]) for t in graph.inputs],
            outputs=[ct.TensorType(name=t.name, dtype=_DTYPES[t.dtype]) for t in graph.outputs],
            compute_precision=ct.transform.FP16ComputePrecision(
                op_selector=lambda op: not (float32_norms and _is_inside_norm(op))
            ),
            convert_to="milinternal",
            **target,
        )
        _compress(converted, parameters)
        model: Any = ct.convert(
            converted,
            source="milinternal",
            convert_to="mlprogram",
            pass_pipeline=ct.PassPipeline.EMPTY,
            skip_model_load=True,
            **target,
        )
        model.save(str(path))
        del model, converted, program
    # What another project's debugger would read: paths of this machine among it.
    (path / "executorch_debug_handle_mapping.json").unlink(missing_ok=True)


def join(packages: Mapping[str, Path], path: Path) -> None:
    """All packages as functions of one, by their names there; weights of equal values are in it once."""
    with _quiet():
        ct = _module("coremltools")

        described = ct.utils.MultiFunctionDescriptor()
        for name, source in packages.items():
            described.add_function(str(source), src_function_name="main", target_function_name=name)
        described.default_function_name = next(iter(packages))
        ct.utils.save_multifunction(described, str(path))


def read_program(path: Path) -> Any:
    """The program of a package, of all its functions, with the values of its weights."""
    with _quiet():
        ct = _module("coremltools")
        load = _module("coremltools.converters.mil.frontend.milproto.load").load
        model = ct.models.MLModel(str(path), skip_model_load=True)
        spec: Any = model.get_spec()
        program = load(spec, spec.specificationVersion, str(model.weights_dir))
        del model
        return program


def compressed_weights(function: Any) -> list[Compressed]:
    """The weights of a function that are integers, in the order of its operations."""
    return [
        Compressed(integers=np.asarray(op.data.val).astype(np.int8), scale=np.asarray(op.scale.val).astype(np.float16))
        for op in function.operations
        if op.op_type == "constexpr_blockwise_shift_scale"
    ]


def compressed(weight: QuantisedWeight) -> Compressed:
    """The form that the package should have of a weight."""
    return Compressed(integers=weight.integers.astype(np.int8), scale=_scale(weight).astype(np.float16))


def can_compress(weight: Parameter) -> bool:
    """Whether the package can have the weight's integers: of 4 or 8 bits, with a zero point of zero."""
    if not isinstance(weight, QuantisedWeight) or weight.encoding.grid.bits not in _COMPRESSED_BITS:
        return False
    encoding = weight.encoding
    return encoding.grid.signed and not (isinstance(encoding, PerTensor) and encoding.zero_point)


def _is_inside_norm(op: Any) -> bool:
    """Scaling, square, mean, epsilon, root and their product with the input: an epsilon of 1e-10 is none in float16."""
    if op.op_type in ("pow", "reduce_mean", "rsqrt"):
        return True
    readers = {reader.op_type for output in op.outputs for reader in output.child_ops}
    made_by = {value.op.op_type for value in op.inputs.values() if getattr(value, "op", None) is not None}
    return op.op_type in ("mul", "add") and bool(readers & {"pow", "rsqrt"} or "rsqrt" in made_by)


def _compress(program: Any, parameters: Mapping[str, Parameter]) -> None:
    """Put integers and scales in the place of the constants that have their values."""
    builder, types = _module("coremltools.converters.mil").Builder, _module("coremltools.converters.mil.mil.types")
    scope = _module("coremltools.converters.mil.mil.scope")
    ours: dict[bytes, QuantisedWeight] = {}
    for parameter in parameters.values():
        if isinstance(parameter, QuantisedWeight) and can_compress(parameter):
            ours[_digest(parameter.floats().astype(np.float16))] = parameter
    # The exporter's notes of where in the source an operation comes from; the program asks every operation for them.
    sources = scope.ScopeSource
    notes = [
        scope.ScopeInfo(source=source, data=[None]) for source in (sources.EXIR_STACK_TRACE, sources.EXIR_DEBUG_HANDLE)
    ]
    function = program.functions["main"]
    for op in list(function.operations):
        value = op.outputs[0].val if op.op_type == "const" else None
        if not isinstance(value, np.ndarray) or value.dtype != np.float16:
            continue
        weight = ours.get(_digest(value))
        if weight is None:
            continue
        form = compressed(weight)
        integers = form.integers if weight.encoding.grid.bits == 8 else form.integers.astype(types.np_int4_dtype)
        with function, builder.scope(*notes):
            made = builder.constexpr_blockwise_shift_scale(
                data=integers, scale=form.scale, before_op=op, name=f"{op.name}_integers"
            )
            block = op.enclosing_block
            block.replace_uses_of_var_after_op(anchor_op=op, old_var=op.outputs[0], new_var=made, force_replace=True)
            block.remove_ops([op])


def _scale(weight: QuantisedWeight) -> NDArray[np.float32]:
    """Scales with the rank of the weight: 1, or the number of blocks, along each axis."""
    encoding, rank = weight.encoding, weight.integers.ndim
    if isinstance(encoding, PerTensor):
        return np.full([1] * rank, encoding.scale, np.float32)
    if isinstance(encoding, PerChannel):
        return encoding.scales.reshape([-1 if axis == encoding.axis else 1 for axis in range(rank)])
    matrix = encoding.scales if encoding.axis == 1 else encoding.scales.T
    return matrix.reshape(*matrix.shape, *([1] * (rank - 2)))


def _digest(values: NDArray[Any]) -> bytes:
    return hashlib.sha256(repr(values.shape).encode() + np.ascontiguousarray(values).tobytes()).digest()


def _module(name: str) -> Any:
    """A module of coremltools, whose types say less than what it does."""
    return importlib.import_module(name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the bars of coremltools, what it says of untested versions and of macOS, and what others say of it.

    It leaves temporary directories to be cleaned up, which is done here, so that nobody else is told of them.
    """
    logger = logging.getLogger("coremltools")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            warnings.filterwarnings("ignore", r"Function _TORCH_OPS_REGISTRY", DeprecationWarning)
            warnings.filterwarnings("ignore", r"Implicitly cleaning up <TemporaryDirectory", ResourceWarning)
            yield
            gc.collect()
    finally:
        logger.setLevel(level)
