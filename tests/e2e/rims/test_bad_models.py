"""Damaged model files given to `octavo up` and to a worker: one line that names the file, and nothing left running."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checkpoints import make_llama, write_gguf
from octavo_process import Octavo

from octavo_common.exits import MISCONFIGURED

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sound checkpoint in hf/ and the same as m.gguf."""
    folder = tmp_path_factory.mktemp("sound")
    model = make_llama(folder / "hf", hidden_size=32, intermediate_size=32, num_attention_heads=4, num_hidden_layers=1)
    write_gguf(folder / "m.gguf", model)
    return folder


def _cut(source: Path) -> None:
    file = source / "m.gguf"
    file.write_bytes(file.read_bytes()[:-1000])


def _replace(old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(source: Path) -> None:
        file = source / "m.gguf"
        data = file.read_bytes()
        assert data.count(old) == 1
        file.write_bytes(data.replace(old, new))

    return change


def _wrong_shape(source: Path) -> None:
    file = source / "hf" / "model.safetensors"
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header["model.layers.0.mlp.up_proj.weight"]["shape"] = [16, 64]
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def _cut_safetensors(source: Path) -> None:
    file = source / "hf" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


UP_PROJ = b"blk.0.ffn_up.weight" + struct.pack("<IQQ", 2, 32, 32)
DAMAGES: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "truncated GGUF": ("m.gguf", _cut, "truncated"),
    "truncated safetensors": ("hf", _cut_safetensors, "model.safetensors"),
    "unknown tokenizer": ("m.gguf", _replace(struct.pack("<Q", 4) + b"gpt2", struct.pack("<Q", 4) + b"rwkv"), "'rwkv'"),
    "unknown tensor type": (
        "m.gguf",
        _replace(UP_PROJ + struct.pack("<I", 0), UP_PROJ + struct.pack("<I", 999)),
        "blk.0.ffn_up.weight",
    ),
    "wrong shape": ("hf", _wrong_shape, "model.layers.0.mlp.up_proj.weight"),
}


def _damaged(sound: Path, tmp_path: Path, name: str) -> tuple[Path, str]:
    """The damaged model's path, and what its error must say."""
    model, damage, says = DAMAGES[name]
    copy = tmp_path / "damaged"
    shutil.copytree(sound, copy)
    damage(copy)
    return copy / model, says


@pytest.mark.parametrize("name", DAMAGES)
def test_a_worker_ends_with_one_line_that_names_the_file(sound: Path, tmp_path: Path, name: str) -> None:
    path, says = _damaged(sound, tmp_path, name)
    environ = {
        **{k: v for k, v in os.environ.items() if not k.startswith("OCTAVO_")},
        "OCTAVO_DATA_DIR": str(tmp_path),
        # Loading comes before both.
        "OCTAVO_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "OCTAVO_INTERNAL_TOKEN": "x" * 32,
        "OCTAVO_WORKER_MODEL": str(path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "octavo_worker"], env=environ, capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout) == (MISCONFIGURED, "")
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert line.startswith("octavo-worker: ") and str(path) in line and says in line


def test_up_with_a_damaged_model_ends_with_one_line_and_leaves_nothing(sound: Path, tmp_path: Path) -> None:
    path, says = _damaged(sound, tmp_path, "truncated GGUF")
    platform = Octavo(tmp_path / "data")
    platform.data_dir.mkdir()
    words = ("--detach", "--wait", "--timeout", "200", "--no-console", "--model", str(path))
    done = platform.run("up", *words, timeout_s=240)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: worker-0 cannot start: ") and str(path) in last and says in last
    assert platform.processes() == []
    assert platform.run("status").returncode == 1


@pytest.mark.parametrize("words", [(), ("--detach", "--wait")])
def test_up_with_no_model_ends_with_one_line_and_leaves_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    platform = Octavo(tmp_path / "data")
    platform.data_dir.mkdir()
    done = platform.run("up", *words, "--no-console", "--model", "no-such-model", timeout_s=240)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "there is no model 'no-such-model'" in done.stderr.strip().splitlines()[-1]
    assert platform.processes() == []
