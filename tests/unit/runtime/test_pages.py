"""Huge pages change where memory lies, never what it holds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import mmap, sys
import numpy as np
from octavo_worker.runtime.pages import collapse_resident_memory

used = np.random.default_rng(0).integers(0, 2**60, 8 << 20, dtype=np.int64)
sum_before = int(used.sum())
untouched = mmap.mmap(-1, 256 << 20)
def rss_kib():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1])
before = rss_kib()
moved = collapse_resident_memory()
huge = int(next(l for l in open("/proc/self/smaps_rollup") if l.startswith("AnonHugePages")).split()[1])
assert int(used.sum()) == sum_before
print(moved, huge, rss_kib() - before)
"""
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux only")
def test_memory_in_use_moves_keeps_its_content_and_untouched_memory_stays_untouched():
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    moved, huge_kib, grown_kib = map(int, run.stdout.split())
    # Holes of a tenth are filled at most; the 256 MiB that nobody wrote are not.
    assert grown_kib * 1024 <= moved * 0.1 + (4 << 20)
    if ENABLED.exists() and "[never]" not in ENABLED.read_text() and _kernel() >= (6, 1):
        assert moved >= 48 << 20
        assert huge_kib * 1024 >= moved * 0.9


def _kernel() -> tuple[int, int]:
    found = re.match(r"(\d+)\.(\d+)", Path("/proc/sys/kernel/osrelease").read_text())
    assert found
    return int(found[1]), int(found[2])
