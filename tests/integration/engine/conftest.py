from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from oracles import Reference, TieRule, read_prompts
from plugins_models import demo_model_path  # noqa: F401 - a fixture

from octavo_common.text.tokenizer import Tokenizer
from octavo_worker.models.base import LoadedModel
from octavo_worker.models.registry import load_model


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads that wait for each other are slow beside anything else that runs."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def demo(demo_model_path: Path) -> LoadedModel:  # noqa: F811
    """The demo model as we load it."""
    return load_model(demo_model_path)


@pytest.fixture(scope="session")
def demo_reference(demo_model_path: Path, request: pytest.FixtureRequest) -> Reference:  # noqa: F811
    """The demo model as transformers loads it, from the same file."""

    def load():
        from transformers import AutoModelForCausalLM

        folder, name = demo_model_path.parent, demo_model_path.name
        return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()

    return Reference(model=load, cache_dir=request.config.cache.mkdir("octavo-answers"), key="demo")


@pytest.fixture(scope="session")
def demo_prompts(demo: LoadedModel) -> list[list[int]]:
    """The twenty real prompts."""
    tokenizer = Tokenizer(demo.bundle)
    prompts = [list(tokenizer.encode(text)) for text in read_prompts()]
    assert len(prompts) == 20
    assert min(map(len, prompts)) == 3
    assert max(map(len, prompts)) >= 800
    return prompts


@pytest.fixture(scope="session")
def demo_rule(demo_reference: Reference) -> Iterator[TieRule]:
    """The rule for the demo model; prints its count at the end."""
    rule = TieRule(demo_reference)
    yield rule
    print("\ndemo model:", rule.summary())
