"""Every kernel compiles for GPUs that are not here, within their shared memory and without spilled registers."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from triton import knobs
from triton_variants import FAMILIES, Family, decode, extend, pairwise

from octavo_worker.kernels.triton.aot import SHARED_LIMIT, compile_launch
from octavo_worker.kernels.triton.launch import is_interpreted
from octavo_worker.kernels.triton.pages import KVFormat


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))


def problems(family, choices):
    """What is wrong with each choice. One after the other: Python 3.11 parses wrongly in several threads at once."""
    found = []
    for choice in choices:
        launch = family.make(**{name: value for name, value in choice.items() if name != "arch"})
        found += [f"{choice}: {problem}" for problem in compile_launch(launch, choice["arch"]).problems]
    return found


def test_kernels_are_compiled_and_not_interpreted_here():
    assert not is_interpreted()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_pairwise_set_compiles_without_spills(family):
    assert problems(family, pairwise(family)) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_all_shapes_compile_without_spills(family):
    assert problems(family, list(family.choices())) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("family", [f for f in FAMILIES if "head_dim" in f.factors], ids=lambda family: family.name)
def test_the_heads_of_tiny_models_compile_without_spills(family):
    """On plain pages, which is what the worker has."""
    few = {"format": (KVFormat.PLAIN,), "group": (1, 4), "mask": ("causal", "window")}
    factors = {name: few.get(name, values) for name, values in family.factors.items()}
    assert problems(family, list(replace(family, factors={**factors, "head_dim": (16, 32, 48)}).choices())) == []


def test_a_pairwise_set_holds_all_pairs():
    family = Family(name="", factors={"a": range(4), "b": range(3), "c": range(2), "arch": (80, 90)}, make=decode)
    taken = pairwise(family)
    assert {(c["a"], c["b"]) for c in taken} == {(a, b) for a in range(4) for b in range(3)}
    assert {(c["c"], c["arch"]) for c in taken} == {(c, arch) for c in range(2) for arch in (80, 90)}
    assert len(taken) < len(list(family.choices())) // 2


@pytest.mark.parametrize(("arch", "product"), [(80, "mma.sync"), (90, "wgmma.mma_async"), (100, "tcgen05.mma")])
def test_prompts_use_the_matrix_units_and_wide_loads(arch, product):
    """Nothing about the pages keeps the compiler from what makes attention fast."""
    ptx = compile_launch(extend(128, torch.bfloat16, KVFormat.PLAIN, "causal", 4096), arch).ptx
    assert product in ptx
    assert re.search(r"cp\.async\.cg\.shared\.global \[.*\], 0x10", ptx)


def test_what_a_device_has_not_is_found():
    compiled = compile_launch(decode(128, torch.bfloat16, KVFormat.PLAIN, 4), 80)
    assert 0 < compiled.registers <= 255
    assert 0 < compiled.shared_bytes < SHARED_LIMIT[80]
    too_large = type(compiled)(name="x", arch=80, registers=255, shared_bytes=200_000, stack_bytes=8, local_bytes=16)
    assert len(too_large.problems) == 3
