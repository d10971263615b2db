"""What the gateway refuses of a build by itself."""

from __future__ import annotations

from typing import Any

import pytest

from octavo_common.errors import InvalidArgument
from octavo_gateway.builds.validation import MAX_RECIPE_BYTES, MAX_TEXTS_BYTES, RawBuild, validate


def raw(**changes: Any) -> RawBuild:
    values: dict[str, Any] = {
        "model": "/models/m",
        "targets": ["onnxruntime"],
        "recipe": "",
        "recipe_yaml": None,
        "recipe_texts": {},
        "context_length": 0,
        "ars": [],
        "options": {},
        "target_options": {},
    }
    return RawBuild(**{**values, **changes})


def test_what_is_not_said_gets_its_default() -> None:
    spec = validate(raw()).spec
    assert (spec.recipe, spec.recipe_yaml, spec.context_length, spec.ars) == ("w8a16", "", 512, (128, 1))
    assert validate(raw(context_length=64)).spec.ars == (1,)
    assert validate(raw(ars=[1, 16])).spec.ars == (16, 1)
    own = validate(raw(recipe_yaml="")).spec
    assert (own.recipe, own.recipe_yaml) == ("", "")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": ""}, "model"),
        ({"model": "a\0b"}, "model"),
        ({"model": "m" * 5000}, "model"),
        ({"targets": []}, "targets"),
        ({"targets": ["a", "a"]}, "targets"),
        ({"targets": [""]}, "targets"),
        ({"targets": [str(i) for i in range(17)]}, "targets"),
        ({"context_length": -1}, "context_length"),
        ({"context_length": 2**21}, "context_length"),
        ({"ars": [0]}, "ars"),
        ({"ars": [8, 8]}, "ars"),
        ({"context_length": 8, "ars": [8, 1]}, "ars"),
        ({"ars": list(range(1, 10))}, "ars"),
        ({"recipe": "r" * 300}, "recipe"),
        ({"recipe_yaml": "r" * (MAX_RECIPE_BYTES + 1)}, "recipe_yaml"),
        ({"recipe_yaml": "a\0"}, "recipe_yaml"),
        ({"recipe_texts": {"a": "x" * (MAX_TEXTS_BYTES + 1)}}, "recipe_texts"),
        ({"recipe_texts": {str(i): "" for i in range(65)}}, "recipe_texts"),
        ({"recipe_texts": {"a": "\0"}}, "recipe_texts"),
        ({"options": {"": "x"}}, "options"),
        ({"options": {str(i): "" for i in range(65)}}, "options"),
        ({"target_options": {"a": "x" * 5000}}, "target_options"),
        ({"idempotency_key": "k" * 256}, "idempotency_key"),
        ({"timeout_s": 0.0}, "timeout"),
        ({"timeout_s": float("inf")}, "timeout"),
        ({"priority": 101}, "priority"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(changes: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate(raw(**changes))
    assert caught.value.param == param
