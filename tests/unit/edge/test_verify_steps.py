"""The order of what `make verify` runs: what installs an environment is before what skips without it."""

from __future__ import annotations

from benchmarks.verify import steps


def test_what_needs_the_peers_environments_comes_after_them(tmp_path):
    names = [step.name for step in steps(tmp_path / "model", tmp_path)]
    assert len(names) == len(set(names))
    assert names.index("peers") < min(names.index("slow"), names.index("quality"))
