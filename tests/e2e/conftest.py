"""A whole platform in a temporary data directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from octavo_process import Octavo


@pytest.fixture(scope="module")
def octavo(tmp_path_factory: pytest.TempPathFactory, demo_model_path: Path) -> Iterator[Octavo]:
    data_dir = tmp_path_factory.mktemp("platform").resolve()
    # models/<name>/<file>: nothing is fetched again.
    (data_dir / "models").symlink_to(demo_model_path.parents[1])
    platform = Octavo(data_dir)
    try:
        yield platform
    finally:
        platform.run("down")
        assert platform.processes() == []
