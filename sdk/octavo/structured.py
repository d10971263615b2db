"""Builds what an answer must follow. Pure; grammars are the platform's to judge."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.errors import InvalidArgumentError
from octavo.fields import build, put
from octavo.v1 import gateway_pb2


def structured_output(
    *,
    json_schema: Mapping[str, Any] | str | None = None,
    json_object: bool = False,
    regex: str | None = None,
    choice: str | Sequence[str] | None = None,
    grammar: str | None = None,
) -> gateway_pb2.StructuredOutput | None:
    """Say what the whole answer follows: one of these, or None if nothing is asked for. Raises InvalidArgumentError.

    ``grammar`` is in GBNF or Lark's form; ``regex`` in Rust's syntax.
    """
    given: dict[str, Any] = {
        name: value
        for name, value in (("json_schema", json_schema), ("regex", regex), ("choice", choice), ("grammar", grammar))
        if value is not None
    }
    if json_object:
        given["json_object"] = json_object
    if len(given) > 1:
        names = list(given)
        raise InvalidArgumentError(
            f"{' and '.join(names)} were both given: an answer follows one of them", param=names[1]
        )
    if "choice" in given:
        texts = given["choice"]
        # A string is one text, not its letters.
        texts = [texts] if isinstance(texts, str) else texts
        given["choice"] = build(gateway_pb2.TextChoices, {"texts": "choice"}, texts=texts)
    if "json_schema" in given and not isinstance(json_schema, str):
        given["json_schema"] = _json(json_schema)
    if not given:
        return None
    message = gateway_pb2.StructuredOutput()
    for name, value in given.items():
        put(message, name, value)
    return message


def _json(schema: Any) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"json_schema is no JSON: {error}"[:300], param="json_schema") from error
