"""What `make verify` runs, and what it tells: installed is what others skip without; a failed step says what failed."""

from __future__ import annotations

import json

from benchmarks.verify import BY_TWO, ROOT, Step, run, steps


def test_what_needs_the_peers_environments_comes_after_them(tmp_path):
    names = [step.name for step in steps(tmp_path / "model", tmp_path)]
    assert len(names) == len(set(names))
    assert names.index("peers") < min(names.index("slow"), names.index("quality"))


def test_the_tests_are_shared_as_make_test_shares_them():
    recipe = (ROOT / "Makefile").read_text().partition("\ntest: ")[2].partition("\n\n")[0]
    assert " ".join(BY_TWO).replace(" 2 ", " $(TEST_PROCESSES) ") in recipe


def test_a_step_that_fails_says_what_does_not_hold_and_not_what_it_said_last(tmp_path):
    checks = [{"name": "left / right", "value": value, "holds": value >= 1.0} for value in (0.5, 2.0)]
    found = {"benchmark": "pair", "figures": {}, "checks": checks, "machine": {}}
    for written, told in ((found, "left / right: 0.50"), ({"troubles": ["one", "two"]}, "one; two"), ({}, "bye")):
        script = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.argv[2]); print('bye'); sys.exit(1)"
        argv = ("-c", script, str(tmp_path / "pair.json"), json.dumps(written))
        outcome = run(Step(name="pair", about="", argv=argv, timeout_s=60), tmp_path)
        assert (outcome.passed, outcome.words) == (False, told)
        assert outcome.result == (found if written is found else None)
