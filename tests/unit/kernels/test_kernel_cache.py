"""Which sources decide whether a kept kernel is still the right one."""

from __future__ import annotations

from octavo_worker.kernels import logits, ranks, rows, team, vector


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
