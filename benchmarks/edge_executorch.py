"""The edge builder's ExecuTorch programs, built and run by the library, which is not among what tests install.

Usage: python -m benchmarks.edge_executorch [PYTEST ARGUMENTS]

Makes an environment under build/executorch/env and runs there the tests that skip elsewhere; a skipped one fails.
The environment carries the digest of its recipe, and one of another recipe is made anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "executorch"
CONSTRAINTS = ROOT / "constraints.txt"
# All services, since the tests' common fixtures know them, and no other vendor's tool-chain.
WANTED = ("--editable", ".[all,edge-executorch]", "pytest", "pytest-asyncio", "pytest-timeout")
TESTS = ("tests/unit/edge/test_executorch_edge.py", "-q", "-m", "slow or not slow")
_STEP_TIMEOUT_S = 3600


def torch_requirement() -> str:
    """The exact version of torch: left to a range, pip may take a build of several gigabytes."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith("torch=="))


def interpreter() -> Path:
    """The environment's Python, installed first if need be. CalledProcessError, when that fails; pip says why."""
    folder = FOLDER / "env"
    python, ready = folder / "bin" / "python", folder / ".ready"
    # The extras are the project's own.
    files = (CONSTRAINTS, ROOT / "pyproject.toml")
    recipe = "\n".join((*WANTED, *(file.read_text(encoding="utf-8") for file in files)))
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    if ready.exists() and ready.read_text(encoding="utf-8") == digest:
        return python
    print(f"installing ExecuTorch into {folder.relative_to(ROOT)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    install = [*pip, "install", "--progress-bar=off", "--constraint", str(CONSTRAINTS)]
    # As the Makefile has it: an index to take torch from. First and alone, so that nothing chooses another.
    index = os.environ.get("TORCH_INDEX")
    _run([*install, *(["--extra-index-url", index] if index else []), torch_requirement()])
    _run([*install, *WANTED])
    _run([*pip, "check"])
    _run([str(python), "-c", "import executorch.runtime"])
    ready.write_text(digest, encoding="utf-8")
    return python


def _run(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, env=environment, timeout=_STEP_TIMEOUT_S, check=True)


def main(arguments: Sequence[str]) -> int:
    """Install, and run the tests; returns the exit code."""
    environment = {**os.environ, "OCTAVO_TEST_NO_SKIPS": "1"}
    try:
        _run([str(interpreter()), "-m", "pytest", *TESTS, *arguments], environment)
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
