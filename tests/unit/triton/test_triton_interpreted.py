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
FILES = sorted(path.name for path in HERE.glob("interpret_*.py"))


def start(name, output, **environment):
    """One thread each: the arrays are small, and others run beside."""
    command = [sys.executable, "-m", "pytest", "--noconftest", "-q", "-p", "no:cacheprovider", str(HERE / name)]
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, env=env, stdout=output.open("w"), stderr=subprocess.STDOUT, cwd=HERE.parents[2])


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All files at once: most of their time is Python's, on one core."""
    folder = tmp_path_factory.mktemp("interpreted")
    running = {name: (start(name, folder / name), folder / name) for name in FILES}
    yield running
    for process, _ in running.values():
        process.kill()
        process.wait()


@pytest.mark.parametrize("name", FILES)
def test_kernels_match_float64_in_the_interpreter(runs, name):
    process, output = runs[name]
    assert process.wait() == 0, output.read_text()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FILES)
def test_kernels_match_float64_over_many_shapes(tmp_path, name):
    process = start(name, tmp_path / name, OCTAVO_TEST_TRITON_EXAMPLES="150", PYTEST_ADDOPTS="--timeout=3000")
    assert process.wait() == 0, (tmp_path / name).read_text()


def test_the_gpu_benchmark_says_that_there_is_no_gpu():
    if torch.cuda.is_available():
        return
    command = [sys.executable, "-m", "benchmarks.gpu_kernels"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[2])
    assert run.returncode == 2
    assert run.stderr.startswith("no GPU")
