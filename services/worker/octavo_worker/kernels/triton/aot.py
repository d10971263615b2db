"""Compiles a launch for a GPU that is not there, and reads what the machine code uses. Runs nothing.

The signature is what Triton would derive from the arguments: types, and divisibility by 16 of addresses and numbers.
Registers, stack and local memory are not in the metadata of a compiled kernel: `cuobjdump`, which is in Triton's
wheel, reads them from the cubin. Stack or local memory above 0 means that registers were spilled.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from octavo_worker.kernels.triton.launch import Launch

# Bytes of shared memory that one block of threads may have.
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float64: "fp64",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e5m2: "fp8e5",
}
_USAGE = re.compile(r"Function (\S+):\s*\n?\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What a kernel takes on a device."""

    name: str
    arch: int
    registers: int
    shared_bytes: int
    stack_bytes: int
    local_bytes: int
    # The assembly that machines of its generation share.
    ptx: str = field(default="", repr=False)

    @property
    def problems(self) -> list[str]:
        """Every reason why it would not run, or would run badly."""
        found: list[str] = []
        if self.shared_bytes > SHARED_LIMIT[self.arch]:
            found.append(f"{self.shared_bytes} bytes of shared memory, {SHARED_LIMIT[self.arch]} are allowed")
        if self.stack_bytes:
            found.append(f"{self.stack_bytes} bytes of stack")
        if self.local_bytes:
            found.append(f"{self.local_bytes} bytes of local memory")
        return found


def compile_launch(launch: Launch, arch: int) -> Compiled:
    """Compile for `sm_<arch>`. Its tensors may be on the device `meta`; raises what Triton raises."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = dict(launch.constants)
    attrs: dict[tuple[int], list[list[Any]]] = {}
    names = list(launch.kernel.arg_names)
    for index, name in enumerate(names):
        if name in launch.constants:
            signature[name] = "constexpr"
            continue
        value = launch.args[name]
        if launch.kernel.params[index].do_not_specialize:
            signature[name] = _type_of(value)
            continue
        if isinstance(value, int) and value == 1:
            # Triton makes a constant of a number that is 1.
            signature[name], constants[name] = "constexpr", 1
            continue
        signature[name] = _type_of(value)
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            attrs[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=attrs)
    kernel = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=launch.options)
    usage = _resource_usage(kernel.asm["cubin"])
    return Compiled(
        name=launch.kernel.fn.__name__,
        arch=arch,
        registers=usage["registers"],
        shared_bytes=int(kernel.metadata.shared),
        stack_bytes=usage["stack"],
        local_bytes=usage["local"],
        ptx=kernel.asm["ptx"],
    )


def _type_of(value: Tensor | int | float) -> str:
    if isinstance(value, Tensor):
        return "*" + _TYPES[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _resource_usage(cubin: bytes) -> Mapping[str, int]:
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [str(tool), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = _USAGE.search(text)
    if found is None:
        raise ValueError(f"cuobjdump says nothing of resources: {text[:500]}")
    registers, stack, _, local = (int(found[i]) for i in range(2, 6))
    return {"registers": registers, "stack": stack, "local": local}
