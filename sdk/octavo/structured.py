"""Builds what an answer must follow. Pure; grammars are the platform's to judge."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.v1 import gateway_pb2


def structured_output(
    *,
    json_schema: Mapping[str, Any] | str | None,
    json_object: bool,
    regex: str | None,
    choice: str | Sequence[str] | None,
    grammar: str | None,
) -> gateway_pb2.StructuredOutput | None:
    """Build the message; None if nothing is asked for. Raises ValueError for more than one."""
    given: dict[str, Any] = {
        name: value
        for name, value in (("json_schema", json_schema), ("regex", regex), ("choice", choice), ("grammar", grammar))
        if value is not None
    }
    if json_object:
        given["json_object"] = True
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} were both given: an answer follows one of them")
    if "choice" in given:
        texts = given["choice"]
        # A string is one text, not its letters.
        given["choice"] = gateway_pb2.TextChoices(texts=[texts] if isinstance(texts, str) else texts)
    if "json_schema" in given and not isinstance(json_schema, str):
        given["json_schema"] = json.dumps(json_schema)
    return gateway_pb2.StructuredOutput(**given) if given else None
