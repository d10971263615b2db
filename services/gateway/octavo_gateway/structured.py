"""Checks what an answer must follow, as far as that is quick: form and size. The worker compiles it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from octavo_gateway.checks import check_flag, check_strings, check_text, refuse
from octavo_gateway.requests import RequestLimits

PARAM = "structured_output"


def grammar(given: Sequence[tuple[str, Any]], bounds: RequestLimits) -> tuple[str, str] | None:
    """Kind and text of the grammar, None without one. Raises InvalidArgument."""
    if not given:
        return None
    if len(given) > 1:
        kinds = " and ".join(kind for kind, _ in given)
        refuse(f"{kinds} were both given", PARAM, hint="an answer follows one of them")
    ((kind, value),) = given
    text = _text(kind, value, bounds)
    if len(text) > bounds.max_grammar_chars:
        refuse(
            f"the grammar ({kind}) has {len(text)} characters, and at most {bounds.max_grammar_chars} are taken", PARAM
        )
    return kind, text


def _text(kind: str, value: Any, bounds: RequestLimits) -> str:
    if kind == "json_object":
        if not check_flag(value, PARAM):
            refuse("json_object must be true where it is given", PARAM)
        return ""
    if kind == "json_schema":
        return _schema(value)
    if kind == "choice":
        texts = check_strings(
            value, PARAM, "choice", max_strings=bounds.max_text_choices, max_chars=bounds.max_grammar_chars
        )
        if not texts:
            refuse("there is nothing to choose from", PARAM)
        if len(set(texts)) < len(texts):
            refuse("a choice stands there twice", PARAM)
        return json.dumps(texts, ensure_ascii=False)
    text = check_text(value, PARAM)
    if not text.strip():
        refuse(f"the grammar ({kind}) is empty", PARAM)
    if "\0" in text:
        refuse(f"the grammar ({kind}) holds a NUL character", PARAM)
    return text


def _schema(value: Any) -> str:
    """The schema as JSON text, whether it came as text or as JSON."""
    try:
        schema = json.loads(check_text(value, PARAM)) if isinstance(value, str) else value
        text = json.dumps(schema)
    except (ValueError, TypeError, RecursionError) as error:
        refuse(f"the JSON schema is no JSON: {error}"[:300], PARAM)
    if not isinstance(schema, dict | bool):
        refuse("a JSON schema is a JSON object", PARAM)
    return text
