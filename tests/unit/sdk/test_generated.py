"""The committed stubs are what the protos generate."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROTOS = ROOT / "protos"


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="grpcio-tools is not installed")
    files = [str(path) for path in sorted(PROTOS.rglob("*.proto"))]
    outs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "grpc_tools.protoc", f"-I{PROTOS}", *outs, *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    fresh = {path.name: path.read_text() for path in (tmp_path / "octavo" / "v1").iterdir()}
    committed = {
        path.name: path.read_text()
        for path in (ROOT / "sdk" / "octavo" / "v1").glob("*.py*")
        if path.name != "__init__.py"
    }
    assert sorted(fresh) == sorted(committed)
    stale = [name for name in fresh if fresh[name] != committed[name]]
    assert stale == [], "run `make proto`"


def test_the_protos_follow_the_style_of_buf() -> None:
    buf = shutil.which("buf", path=str(Path(sys.executable).parent)) or shutil.which("buf")
    if buf is None:
        pytest.skip("buf is not installed")
    done = subprocess.run([buf, "lint", str(PROTOS)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
