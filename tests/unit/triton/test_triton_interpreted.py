"""Runs the kernels' own tests in Triton's interpreter, in processes of their own.

Triton decides when a kernel is imported whether it will be interpreted, for the whole process. So `interpret_*.py` are
files of tests that pytest does not collect by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
# About equally long; a process of its own for each file would spend its time on imports.
GROUPS = {
    "attention": ("attention",),
    "models": ("models",),
    "the rest": ("benchmark", "engine", "pages", "rows", "verify"),
}


def start(group, output, **environment):
    """One thread each: the arrays are small, and others run beside."""
    files = [str(HERE / f"interpret_{name}.py") for name in GROUPS[group]]
    command = [sys.executable, "-m", "pytest", "--noconftest", "-q", "-p", "no:cacheprovider", *files]
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", **environment}
    with output.open("w") as file:
        return subprocess.Popen(command, env=env, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All at once: most of their time is Python's, on one core."""
    folder = tmp_path_factory.mktemp("interpreted")
    running = {group: (start(group, folder / group), folder / group) for group in GROUPS}
    yield running
    for process, _ in running.values():
        process.kill()
        process.wait()


def test_every_file_is_run():
    files = {f"interpret_{name}.py" for names in GROUPS.values() for name in names}
    assert files == {path.name for path in HERE.glob("interpret_*.py")}


@pytest.mark.parametrize("group", GROUPS)
def test_kernels_match_float64_in_the_interpreter(runs, group):
    process, output = runs[group]
    assert process.wait() == 0, output.read_text()


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("group", GROUPS)
def test_kernels_match_float64_over_many_shapes(tmp_path, group):
    process = start(group, tmp_path / "output", OCTAVO_TEST_TRITON_EXAMPLES="100", PYTEST_ADDOPTS="--timeout=7000")
    assert process.wait() == 0, (tmp_path / "output").read_text()


def test_the_gpu_benchmark_says_that_there_is_no_gpu():
    if torch.cuda.is_available():
        return
    command = [sys.executable, "-m", "benchmarks.gpu_kernels"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 2
    assert run.stderr.startswith("no GPU")
