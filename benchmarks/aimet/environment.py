"""AIMET's own environment under build/aimet/env. Knows how it is installed, not what is done with it.

torch first and alone, by a version that brings no GPU libraries; then everything else by exact version, and pip
resolves nothing. An environment carries the digest of its recipe, and one of another recipe is made anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE.parent.parent / "build" / "aimet"
TORCH = "torch==2.13.0+cpu"
_REQUIREMENTS = HERE / "requirements.txt"
VERSION = next(
    line.partition("==")[2]
    for line in _REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    if line.startswith("aimet-onnx==")
)
_STEP_TIMEOUT_S = 3600
# The one thing that is left out on purpose; what is used of onnx2torch needs no torchvision.
_LEFT_OUT = "onnx2torch 1.5.15 requires torchvision"


class NotInstalled(RuntimeError):
    """The environment cannot be made here; the message says why."""


def interpreter() -> Path:
    """The environment's Python, installed first if need be; raises NotInstalled with the last words of what failed."""
    folder = FOLDER / "env"
    python, ready = folder / "bin" / "python", folder / ".ready"
    digest = hashlib.sha256("\n".join((TORCH, _REQUIREMENTS.read_text(encoding="utf-8"))).encode()).hexdigest()
    if ready.exists() and ready.read_text(encoding="utf-8") == digest:
        return python
    print(f"installing AIMET into {folder.relative_to(FOLDER.parent.parent)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    install = [*pip, "install", "--quiet", "--progress-bar=off", "--no-deps"]
    # As the Makefile has it: an index to take torch from.
    index = os.environ.get("TORCH_INDEX")
    _run([*install, *(["--extra-index-url", index] if index else []), TORCH])
    _run([*install, "--requirement", str(_REQUIREMENTS)])
    _check(pip)
    _run([str(python), "-c", "import aimet_onnx"])
    ready.write_text(digest, encoding="utf-8")
    return python


def _check(pip: Sequence[str]) -> None:
    done = subprocess.run([*pip, "check"], capture_output=True, text=True, check=False)
    missing = [line for line in done.stdout.splitlines() if done.returncode and not line.startswith(_LEFT_OUT)]
    if missing:
        raise NotInstalled(f"pip check: {'; '.join(missing)}")


def _run(argv: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_STEP_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{Path(argv[0]).name}: {error}") from error
    if done.returncode:
        words = done.stdout.strip().splitlines()
        raise NotInstalled(f"{Path(argv[0]).name} ended with {done.returncode}: {words[-1] if words else ''}")
