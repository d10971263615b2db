"""Checks and times every Triton kernel on a GPU, and a model from end to end.

Usage: python -m benchmarks.gpu_kernels [--json FILE] [--only NAME,NAME] [--model PATH]

Each kernel runs on inputs of a model of 8 billion parameters, is compared with float64, and is timed against its floor
(the bytes it must move by the bandwidth, or the products it must make by the speed of a matrix product, both measured
here in the same run) and against torch, where torch has the same thing. Then a tiny model of random weights must answer
as on the CPU, and a larger one, random too (1.2 billion parameters) or the checkpoint that is given, is timed in
bfloat16 while 1, 8 and 32 sequences decode, with recorded steps and without. Meant for under three minutes (a large
checkpoint: and as long as its loading). Without a GPU it says so and exits with 2.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
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


def measure_model(path: Path | None, speed: Speed) -> tuple[dict[str, float], list[Check]]:
    """Figures and checks of models from end to end; without a path of one with random weights."""
    from benchmarks.gpu_models import ONE_BILLION, TINY_MODEL, check_tokens, decode_figures, random_model

    from octavo_worker.models.registry import load_model

    checks = list(check_tokens(TINY_MODEL))
    if path is None:
        loaded = random_model(ONE_BILLION, device="cuda", precision="bfloat16")
    else:
        loaded = load_model(path, precision="bfloat16", device="cuda")
    figures = decode_figures(loaded, time.perf_counter, bytes_per_s=speed.bytes_per_s)
    return {**figures, "model.weight_bytes": float(loaded.weight_bytes)}, checks


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="where to keep the result")
    parser.add_argument("--only", default="", help="kernels, or `model`, separated by commas")
    parser.add_argument("--model", type=Path, help="a checkpoint to time instead of random weights")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU: the kernels can be checked (make kernels) but not timed here", file=sys.stderr)
        return 2
    from octavo_worker.kernels import gpu

    if reasons := gpu.reasons_against():
        print(f"no GPU that the kernels run on: {'; '.join(reasons)}", file=sys.stderr)
        return 2
    from benchmarks.gpu_cases import Sizes, cases

    from octavo_worker.kernels.triton.pages import KVFormat

    started_s = time.perf_counter()
    device, sizes, timer = torch.device("cuda"), Sizes(), CudaTimer()
    capability = torch.cuda.get_device_capability()
    formats = tuple(format for format in KVFormat if format.min_capability <= capability)
    speed = measure_speed(timer, device, sizes.dtype)
    only = {name for name in args.only.split(",") if name}
    figures, checks = measure(cases(device, sizes, formats), timer, speed, only)
    if not only or "model" in only:
        model_figures, model_checks = measure_model(args.model, speed)
        figures, checks = {**figures, **model_figures}, [*checks, *model_checks]
    figures |= {
        "took_s": time.perf_counter() - started_s,
        "copy_gb_per_s": speed.bytes_per_s / 1e9,
        "matmul_tflops": speed.flops_per_s / 1e12,
    }
    machine = describe_machine() | {
        "gpu": torch.cuda.get_device_name(),
        "capability": f"sm_{capability[0]}{capability[1]}",
        "torch": torch.__version__,
        "kernels": gpu.machine(),
    }
    result = Result(
        benchmark="gpu_kernels",
        settings={
            "repeats": _REPEATS,
            "dtype": str(sizes.dtype),
            "model": str(args.model or "random, 1.2 billion parameters"),
        },
        figures=figures,
        checks=tuple(checks),
        machine=machine,
    )
    return report(result, args.json)


if __name__ == "__main__":
    sys.exit(main())
