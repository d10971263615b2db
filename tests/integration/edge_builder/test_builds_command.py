"""`octavo build` and `octavo builds` as a user types them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from builder_world import PATIENCE_S, QUICK, BuilderWorld

from octavo import JobState

pytestmark = pytest.mark.db


async def start(world: BuilderWorld, *words: str) -> asyncio.subprocess.Process:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OCTAVO_")}
    settings = {
        "OCTAVO_ADDRESS": f"127.0.0.1:{world.port}",
        "OCTAVO_API_KEY": world.gateways.key,
        "OCTAVO_DATA_DIR": str(world.folder / "cli"),
    }
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "octavo_cli", *words),
        env=kept | settings,
        cwd=world.folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def run(world: BuilderWorld, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    process = await start(world, *words)
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def words(
    world: BuilderWorld, out: str, recipe: str = "mine.yaml", model: Path | None = None, target: str = "onnxruntime"
) -> list[str]:
    given = ["build", str(model or world.place.model), "--target", target, "--recipe", recipe]
    return [*given, "--context-length", "32", "--ar", "8,1", "--out", out]


async def test_a_build_is_typed_shown_listed_and_downloaded(
    world: BuilderWorld, small_disk: Callable[[str], Path]
) -> None:
    await world.builder()
    (world.folder / "texts").mkdir()
    (world.folder / "texts" / "a.txt").write_text("The quick brown fox jumps over the lazy dog. " * 60)
    (world.folder / "mine.yaml").write_text(QUICK.replace("2}", "2, texts: [texts/a.txt]}"))
    code, out, err = await run(world, *words(world, "out", target="onnxruntime,gguf"), "--json")
    assert code == 0, err
    build = json.loads(out)
    assert build["job"]["state"] == "succeeded"
    assert "quantise: " in err
    for name in ("onnxruntime", "gguf"):
        assert f"compile for {name} 0/" in err
        assert f"deploy for {name}: " in err
    assert "Traceback" not in err
    assert {"report.json", "report.html"} <= {path.name for path in (world.folder / "out").iterdir()}
    code, out, _ = await run(world, "builds", "list", "--json")
    assert (code, [one["job"]["id"] for one in json.loads(out)]) == (0, [build["job"]["id"]])
    code, out, _ = await run(world, "builds", "show", build["job"]["id"])
    assert code == 0
    assert "worst_sqnr_db >= 100" in out
    assert [line.startswith("deploy for") for line in out.splitlines()].count(True) == 2
    code, _, err = await run(world, "builds", "download", build["job"]["id"], "report.json", "--out", "one")
    assert code == 0, err
    assert [path.name for path in (world.folder / "one").iterdir()] == ["report.json"]
    # Onto a disk that is full: one line, and nothing is left there.
    full = small_disk("32k")
    code, _, err = await run(world, "builds", "download", build["job"]["id"], "--out", str(full / "out"))
    assert (code, "no space left" in err.lower(), "Traceback" in err) == (1, True, False), err
    assert list(full.iterdir()) == []
    # Again into the same place: nothing is overwritten, and nothing is built for nothing.
    code, _, err = await run(world, *words(world, "out"))
    assert code == 1
    assert "no empty directory" in err
    code, _, err = await run(world, *words(world, "new", recipe="absent.yaml"))
    assert (code, "there is no recipe absent.yaml" in err) == (2, True)
    code, _, err = await run(world, *words(world, "new", model=world.folder))
    assert (code, "config.json" in err) == (1, True)
    assert len(await world.builds.list()) == 2


async def test_ctrl_c_cancels_the_build(world: BuilderWorld) -> None:
    await world.builder()
    (world.folder / "mine.yaml").write_text("calibration: {num_windows: 52}\nevaluation: {num_windows: 1}\n")
    process = await start(world, *words(world, "out"))
    async with asyncio.timeout(PATIENCE_S):
        while not any(build.progress for build in await world.builds.list()):
            await asyncio.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, b"is cancelled" in err) == (130, True), err
    (build,) = await world.builds.list()
    assert (await world.end(build)).state is JobState.CANCELLED
    assert not (world.folder / "out").exists()
