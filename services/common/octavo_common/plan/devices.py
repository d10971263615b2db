"""Devices and their peaks: memory, bandwidth, arithmetic. Values only; a machine that is not here gives its own.

Peaks are the vendors' for dense matrices: where a data sheet says "with sparsity", half of its figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo_common.errors import InvalidArgument
from octavo_common.plan.formats import Arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator, or one machine's CPU."""

    name: str
    memory_bytes: float
    # Bytes a second between memory and arithmetic.
    bandwidth: float
    # Operations a second, two to a multiply-add, by arithmetic.
    peaks: Mapping[Arithmetic, float]

    def peak(self, arithmetic: Arithmetic) -> float:
        """Operations a second; what a device has no arithmetic for runs in the narrowest wider one that it has."""
        for wider in _FALLBACK[arithmetic]:
            if wider in self.peaks:
                return self.peaks[wider]
        raise InvalidArgument(f"{self.name} has no peak for {arithmetic}", hint="give it one", param="device")


_FALLBACK = {
    Arithmetic.FP8: (Arithmetic.FP8, Arithmetic.BFLOAT16, Arithmetic.FLOAT32),
    Arithmetic.INT8: (Arithmetic.INT8, Arithmetic.BFLOAT16, Arithmetic.FLOAT32),
    Arithmetic.BFLOAT16: (Arithmetic.BFLOAT16, Arithmetic.FLOAT32),
    Arithmetic.FLOAT32: (Arithmetic.FLOAT32,),
}

_GB, _TB, _TERA = 1e9, 1e12, 1e12


def _device(
    name: str,
    memory_gb: float,
    bandwidth_tb: float,
    *,
    fp32: float,
    bf16: float,
    int8: float,
    fp8: float | None = None,
) -> Device:
    peaks = {
        Arithmetic.FLOAT32: fp32 * _TERA,
        Arithmetic.BFLOAT16: bf16 * _TERA,
        Arithmetic.INT8: int8 * _TERA,
    }
    if fp8 is not None:
        peaks[Arithmetic.FP8] = fp8 * _TERA
    return Device(name=name, memory_bytes=memory_gb * _GB, bandwidth=bandwidth_tb * _TB, peaks=peaks)


DEVICES = {
    device.name: device
    for device in (
        # NVIDIA HGX B200 data sheet, per GPU: 180 GB, 7.7 TB/s; BF16 4.5, FP8 9, INT8 9 P with sparsity; FP32 75 T.
        _device("B200", 180, 7.7, fp32=75, bf16=2250, fp8=4500, int8=4500),
        # NVIDIA H200 data sheet, SXM: 141 GB, 4.8 TB/s; BF16 1,979, FP8 3,958, INT8 3,958 T with sparsity; FP32 67 T.
        _device("H200", 141, 4.8, fp32=67, bf16=989.5, fp8=1979, int8=1979),
        # NVIDIA H100 data sheet, SXM: 80 GB, 3.35 TB/s; arithmetic as the H200.
        _device("H100", 80, 3.35, fp32=67, bf16=989.5, fp8=1979, int8=1979),
        # The same, PCIe: 80 GB, 2 TB/s; BF16 1,513, FP8 3,026, INT8 3,026 T with sparsity; FP32 51 T.
        _device("H100-PCIe", 80, 2.0, fp32=51, bf16=756.5, fp8=1513, int8=1513),
        # NVIDIA A100 data sheet: 80 GB SXM 2,039 GB/s, 40 GB SXM 1,555 GB/s; BF16 312, INT8 624, FP32 19.5 T, dense.
        _device("A100", 80, 2.039, fp32=19.5, bf16=312, int8=624),
        _device("A100-40GB", 40, 1.555, fp32=19.5, bf16=312, int8=624),
        # NVIDIA L40S data sheet: 48 GB, 864 GB/s; BF16 362.05, FP8 733, INT8 733, FP32 91.6 T, dense.
        _device("L40S", 48, 0.864, fp32=91.6, bf16=362.05, fp8=733, int8=733),
        # NVIDIA L4 data sheet: 24 GB, 300 GB/s; BF16 242, FP8 485, INT8 485 T with sparsity; FP32 30.3 T.
        _device("L4", 24, 0.3, fp32=30.3, bf16=121, fp8=242.5, int8=242.5),
        # NVIDIA A10 data sheet: 24 GB, 600 GB/s; BF16 125, INT8 250, FP32 31.2 T, dense.
        _device("A10", 24, 0.6, fp32=31.2, bf16=125, int8=250),
        # NVIDIA Ada white paper, RTX 4090: 24 GB, 1,008 GB/s; BF16 165.2 and FP8 330.3 (sums in float32), INT8 660.6,
        # FP32 82.6 T, dense.
        _device("RTX4090", 24, 1.008, fp32=82.6, bf16=165.2, fp8=330.3, int8=660.6),
        # AMD Instinct MI300X data sheet: 192 GB, 5.3 TB/s; BF16 1,307.4, FP8 and INT8 2,614.9, FP32 163.4 T, dense.
        _device("MI300X", 192, 5.3, fp32=163.4, bf16=1307.4, fp8=2614.9, int8=2614.9),
    )
}


def find_device(name: str) -> Device:
    """The device of that name, whatever its case; raises InvalidArgument."""
    found = next((device for known, device in DEVICES.items() if known.lower() == name.lower()), None)
    if found is None:
        known = ", ".join(DEVICES)
        raise InvalidArgument(f"there is no device {name!r} in the table", hint=f"known: {known}", param="device")
    return found
