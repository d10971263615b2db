"""The demo model for tests, fetched once into the clone's own data directory. tests/conftest.py gives it to all."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo_common.errors import OctavoError
from octavo_common.models.catalog import DEFAULT_MODEL
from octavo_common.models.fetch import fetch

_DATA_DIR = Path(__file__).parents[1] / ".octavo"


@pytest.fixture(scope="session")
def demo_model_path() -> Path:
    """The demo model's GGUF file; fetched where it is not there yet, which is what `make up` would do."""
    try:
        return fetch(DEFAULT_MODEL, data_dir=_DATA_DIR).path
    except OctavoError as error:
        pytest.fail(f"the demo model is needed: {error.message}")
