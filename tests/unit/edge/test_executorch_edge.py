"""ExecuTorch's programs, where the library is installed: methods over one set of weights, and their run here."""

from __future__ import annotations

import json

import pytest
from unit.edge.exported_models import compiled

from octavo_edge.target import CompiledAndRun
from octavo_edge.targets.executorch import ExecuTorchTarget
from octavo_edge.toolchain.executorch_build import build_in_process
from octavo_edge.toolchain.process import LibraryFailed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_program_with_a_method_for_each_number_of_new_tokens_runs_here(exports, tmp_path):
    target = ExecuTorchTarget()
    if missing := target.missing():
        pytest.skip("; ".join(missing))
    out, result = compiled(target, exports["w4"], tmp_path)
    assert isinstance(result.outcome, CompiledAndRun)
    assert result.metrics["same_graph_worst_sqnr_db"] > 100
    blob = json.loads((out / "blob.json").read_text())
    assert blob["graphs"]["head"] == {ar: {"file": "head.pte", "function": f"ar{ar}"} for ar in ("8", "1")}
    # 64 channels to a vocabulary of 330, in float32, once for both methods.
    assert (out / "head.pte").stat().st_size < 1.3 * 64 * 330 * 4


def test_a_library_that_does_not_come_back_is_ended(tmp_path):
    with pytest.raises(LibraryFailed, match="ExecuTorch, head: not done after 0 s"):
        build_in_process(tmp_path, "head", tmp_path / "head.pte", timeout_s=0.01)
