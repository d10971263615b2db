from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from unit.edge.exported_models import RECIPES, exported, optimised

from octavo_edge.artifacts import ExportedModel


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads that wait for each other are slow beside anything else that runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExportedModel]:
    """A small model in 8 and in 4 bits, cut into embedding, decoder and head."""
    folder = tmp_path_factory.mktemp("exports")
    graphs, _ = optimised(folder)
    return {name: exported(graphs, folder / name, recipe) for name, recipe in RECIPES.items()}
