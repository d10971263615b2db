"""The cases of the GPU benchmark at a tiny size in Triton's interpreter: it is right before it meets a GPU."""

from __future__ import annotations

import itertools

import torch
from benchmarks.gpu_cases import TINY, cases
from benchmarks.gpu_kernels import Speed, measure
from benchmarks.gpu_models import TINY_MODEL, Load, check_tokens, decode_figures, random_model

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


def test_a_model_answers_as_on_the_cpu_and_is_timed():
    checks = list(check_tokens(TINY_MODEL, Load(num_prompt=9, num_output=3), count=2))
    assert [check.value for check in checks] == [1.0, 1.0]
    loaded = random_model(TINY_MODEL, device="cuda", precision="float16")
    clock = itertools.count()
    figures = decode_figures(
        loaded,
        lambda: float(next(clock)),
        bytes_per_s=1e9,
        load=Load(num_prompt=3, num_output=2),
        batches=(1, 2),
        kv_bytes=1 << 20,
    )
    # One step of one token each, between two looks at the clock.
    assert [figures[f"model.recorded.decode_{n}.tokens_per_s"] for n in (1, 2)] == [1.0, 2.0]
    assert [figures[f"model.plain.decode_{n}.step_ms"] for n in (1, 2)] == [1000.0, 1000.0]
    assert len(figures) == 2 * 2 * 3
