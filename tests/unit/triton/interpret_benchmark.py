"""The cases of the GPU benchmark at a tiny size in Triton's interpreter: it is right before it meets a GPU."""

from __future__ import annotations

import torch
from benchmarks.gpu_cases import TINY, cases
from benchmarks.gpu_kernels import Speed, measure

from octavo_worker.kernels.triton.pages import KVFormat


def seen(found, names):
    """The cases as they pass; what torch does instead runs once."""
    for case in found:
        names.append(case.name)
        if case.torch_run is not None:
            case.torch_run()
        yield case


def test_every_case_gives_what_it_must():
    names = []
    found = seen(cases(torch.device("cpu"), TINY, tuple(KVFormat)), names)
    speed = Speed(bytes_per_s=1e9, flops_per_s=1e9)
    figures, checks = measure(found, lambda work: 1e-3, speed, set())
    assert [check for check in checks if not check.holds] == []
    assert len(checks) == len(names) == len(set(names)) == 16
    assert all(value > 0 for value in figures.values())
