import os
from collections.abc import Iterator

import pytest
import torch
from plugins_models import demo_model_path

__all__ = ["demo_model_path"]


@pytest.fixture(autouse=True, scope="session")
def few_threads() -> Iterator[None]:
    """As many threads as cores, whatever an earlier test has set."""
    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(before)
