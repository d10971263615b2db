"""The rules that no linter knows: file lengths, exports, and imports without side effects."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("sdk", "cli", "ui", "device", "services", "benchmarks", "tests", "migrations")
HARD_LIMIT = 400


def _files() -> list[Path]:
    return [p for s in SOURCES for p in sorted((ROOT / s).rglob("*.py")) if "octavo/v1" not in p.as_posix()]


def _modules() -> list[str]:
    roots = [p for pattern in ("sdk", "cli", "ui", "device", "services/*") for p in ROOT.glob(pattern)]
    names: list[str] = []
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if parts[-1] == "__main__" or "pages" in parts or "migrations" in parts:
                continue
            names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def test_no_file_is_longer_than_the_hard_limit() -> None:
    too_long = {str(p.relative_to(ROOT)): n for p in _files() if (n := len(p.read_text().splitlines())) > HARD_LIMIT}
    assert too_long == {}


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(p.relative_to(ROOT))
        for p in _files()
        if p.name != "__init__.py" and "tests" not in p.parts and not p.read_text().startswith(('"""', 'r"""', "#!"))
    ]
    assert silent == []


def test_few_files_are_longer_than_the_soft_limit() -> None:
    files = _files()
    long = [str(p.relative_to(ROOT)) for p in files if len(p.read_text().splitlines()) > 250]
    assert len(long) <= len(files) // 10, long


def test_every_test_file_has_a_name_of_its_own() -> None:
    """Folders of tests are no packages, so two files of one name cannot be collected in one run."""
    names = Counter(p.name for p in (ROOT / "tests").rglob("*.py") if p.name not in ("conftest.py", "__init__.py"))
    assert [name for name, num_files in names.items() if num_files > 1] == []


def test_links_between_documents_lead_somewhere() -> None:
    # Where others' packages may lie.
    foreign = (".", "build")
    pages = [p for p in ROOT.rglob("*.md") if not any(part.startswith(foreign) for part in p.relative_to(ROOT).parts)]
    assert ROOT / "README.md" in pages
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert broken == []


def test_importing_a_module_has_no_side_effects() -> None:
    """In a bare environment every module imports, starts no thread, and pulls in no torch unless it works with it."""
    code = """
import importlib, sys, threading
for name in sys.argv[1:]:
    importlib.import_module(name)
    assert threading.active_count() == 1, f"{name} started a thread"
assert "torch" not in sys.modules, "torch was imported where nothing computes"
"""
    heavy = (
        "octavo_worker",
        *(f"octavo_edge.{part}" for part in ("graph", "models", "passes", "quant", "stages", "targets", "toolchain")),
    )
    light = [m for m in _modules() if not m.startswith(heavy)]
    assert len(light) > 20
    command = [sys.executable, "-c", code, *light]
    run = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", ["octavo"])
def test_the_sdk_exports_what_it_says(name: str) -> None:
    module = __import__(name)
    missing = [n for n in module.__all__ if not hasattr(module, n)]
    assert missing == []
    assert list(module.__all__) == sorted(module.__all__)
