"""Which sources decide whether a kept kernel is still the right one."""

from __future__ import annotations

import os
import subprocess
import sys

from octavo_worker.kernels import embedding, logits, positions, program, quantize, ranks, round_rows, rows, team, vector
from octavo_worker.kernels.amx import has_amx
from octavo_worker.kernels.integer import FORMATS, MIXED_64


def digests():
    return team._digest_of_pieces(logits.__name__), team._digest_of_pieces(rows.__name__)


def test_a_kernel_is_compiled_again_when_a_piece_of_it_changes_and_only_then(monkeypatch, tmp_path):
    before = digests()
    changed = tmp_path / "changed.py"
    changed.write_text("# something else\n")
    with monkeypatch.context() as patch:
        patch.setattr(ranks, "__file__", str(changed))
        assert digests()[0] != before[0]
        assert digests()[1] == before[1]
    with monkeypatch.context() as patch:
        # Used by both, by one of them through another module.
        patch.setattr(vector, "__file__", str(changed))
        assert digests()[0] != before[0]
        assert digests()[1] != before[1]
    assert digests() == before


# Made when their modules are imported.
AT_IMPORT = [
    kernel
    for module in (embedding, positions, program, quantize, round_rows, rows)
    for kernel in vars(module).values()
    if isinstance(kernel, team.Launcher)
]
# Made when they are asked for, below.
ASKED_FOR = [
    *(("attention", ways) for ways in {has_amx(), False}),
    "attention_16",
    *(("matmul_16", form) for form in ("bfloat16", FORMATS[0].name)),
    *((kernel, form.name) for kernel in ("embedding", "matmul") for form in FORMATS),
    ("matmul", MIXED_64.name),
]
MAKE_ALL = """
import octavo_worker.kernels.quantize, octavo_worker.kernels.positions, octavo_worker.kernels.round_rows
from octavo_worker.kernels.amx import has_amx
from octavo_worker.kernels.amx_bf16 import has_amx_bf16
from octavo_worker.kernels.attention_bf16 import _kernel as attention_16
from octavo_worker.kernels.attention_int8 import _kernel as attention
from octavo_worker.kernels.embedding import _kernel as embedding
from octavo_worker.kernels.float_matmul import _kernel as matmul_16
from octavo_worker.kernels.bfloat16 import BFLOAT16
from octavo_worker.kernels.grouped_matmul import _kernel as matmul
from octavo_worker.kernels.integer import FORMATS, MIXED_64
attention(has_amx()), attention(False), attention_16(has_amx_bf16())
matmul_16(BFLOAT16, has_amx_bf16()), matmul_16(FORMATS[0], has_amx_bf16())
for form in FORMATS:
    embedding(form), matmul(form, False)
matmul(MIXED_64, has_amx())
"""


def test_a_second_process_finds_every_kernel_of_the_first(tmp_path):
    counts = []
    for _ in range(2):
        env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
        subprocess.run([sys.executable, "-c", MAKE_ALL], env=env, check=True, timeout=300)
        counts.append(len(list(tmp_path.rglob("*.nbc"))))
    assert counts[0] == counts[1] == len(AT_IMPORT) + len(ASKED_FOR)
