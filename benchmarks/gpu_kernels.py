"""Checks and times every Triton kernel on a GPU.

Usage: python -m benchmarks.gpu_kernels [--json FILE] [--only NAME,NAME]

Each kernel runs on inputs of a model of 8 billion parameters, is compared with float64, and is timed against its floor
(the bytes it must move by the bandwidth, or the products it must make by the speed of a matrix product, both measured
here in the same run) and against torch, where torch has the same thing. Takes less than three minutes. Without a GPU it
says so and exits with 2.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmarks.result import Check, Result, describe_machine, report

# Larger than the second-level cache of any GPU we know, so that inputs come from memory.
_FLUSH_BYTES = 256 * 1024 * 1024
_REPEATS = 30
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What the device does at best, measured."""

    bytes_per_s: float
    flops_per_s: float

    def floor_s(self, num_bytes: float, num_flops: float) -> float:
        """The shortest time for so much work."""
        return max(num_bytes / self.bytes_per_s, num_flops / self.flops_per_s)


class CudaTimer:
    """Median of GPU times, each after the cache was overwritten."""

    def __init__(self) -> None:
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def __call__(self, work: Callable[[], object]) -> float:
        """Seconds."""
        for _ in range(3):
            work()
        times: list[float] = []
        for _ in range(_REPEATS):
            self._flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return statistics.median(times)


def measure_speed(time: Callable[[Callable[[], object]], float], device: torch.device, dtype: torch.dtype) -> Speed:
    """Bandwidth of a large copy, and the speed of a large matrix product."""
    source = torch.empty(_GIB, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_s = time(lambda: target.copy_(source))
    a = torch.randn(8192, 8192, device=device).to(dtype)
    product_s = time(lambda: a @ a)
    return Speed(bytes_per_s=2 * _GIB / copy_s, flops_per_s=2 * 8192**3 / product_s)


def measure(
    found: Iterator[object], time: Callable[[Callable[[], object]], float], speed: Speed, only: set[str]
) -> tuple[dict[str, float], list[Check]]:
    """Figures and checks of all cases whose name begins with one of `only` (empty: all)."""
    from benchmarks.gpu_cases import Case

    figures: dict[str, float] = {}
    checks: list[Check] = []
    for case in found:
        assert isinstance(case, Case)
        if only and case.name.split(".")[0] not in only:
            continue
        error = float((case.run().double() - case.wanted()).abs().max())
        checks.append(Check(name=f"{case.name}.max_error", value=error, at_most=case.tolerance))
        floor_s = speed.floor_s(case.num_bytes, case.num_flops)
        took_s = time(case.run)
        figures[f"{case.name}.us"] = took_s * 1e6
        figures[f"{case.name}.floor_us"] = floor_s * 1e6
        figures[f"{case.name}.fraction_of_floor"] = floor_s / took_s
        if case.torch_run is not None:
            figures[f"{case.name}.torch_us"] = time(case.torch_run) * 1e6
    return figures, checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to keep the result")
    parser.add_argument("--only", default="", help="kernels, separated by commas")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: the kernels can be checked (make kernels) but not timed here", file=sys.stderr)
        return 2
    from benchmarks.gpu_cases import Sizes, cases

    from octavo_worker.kernels.triton.pages import KVFormat

    device, sizes, timer = torch.device("cuda"), Sizes(), CudaTimer()
    capability = torch.cuda.get_device_capability()
    formats = tuple(format for format in KVFormat if format.min_capability <= capability)
    speed = measure_speed(timer, device, sizes.dtype)
    only = {name for name in args.only.split(",") if name}
    figures, checks = measure(cases(device, sizes, formats), timer, speed, only)
    figures |= {"copy_gb_per_s": speed.bytes_per_s / 1e9, "matmul_tflops": speed.flops_per_s / 1e12}
    machine = describe_machine() | {
        "gpu": torch.cuda.get_device_name(),
        "capability": f"sm_{capability[0]}{capability[1]}",
        "torch": torch.__version__,
    }
    result = Result(
        benchmark="gpu_kernels",
        settings={"repeats": _REPEATS, "dtype": str(sizes.dtype)},
        figures=figures,
        checks=tuple(checks),
        machine=machine,
    )
    return report(result, args.json)


if __name__ == "__main__":
    sys.exit(main())
