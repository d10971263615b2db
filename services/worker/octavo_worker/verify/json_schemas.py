"""Grammars of JSON schemas: how much white space there may be, and what is made of schemas that are no objects.

A caller may set the library's options in the schema, under "x-guidance", as with vLLM's guidance backend.
"""

from __future__ import annotations

import json
from typing import Any

import llguidance

from octavo_worker.verify.grammar_refusals import ONE_OF, walk

# One space at most, and only behind a comma or a colon: a weak model fills its output with spaces else, and never ends.
_COMPACT: Any = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_SPACING = ("whitespace_flexible", "whitespace_pattern", "item_separator", "key_separator")
# Of so many it is tried which of them is at fault.
_MAX_TRIED = 32


def json_grammar(text: str) -> str:
    """The library's form of a schema. Raises ValueError for what is no JSON, RecursionError for what is too deep."""
    schema = json.loads(text)
    if schema is False:
        raise ValueError("Unsatisfiable schema: false allows nothing")
    if schema is True:
        text = "{}"
    options = schema.get("x-guidance") if isinstance(schema, dict) else None
    has_spacing = isinstance(options, dict) and any(name in options for name in _SPACING)
    return llguidance.LLMatcher.grammar_from_json_schema(text, defaults={} if has_spacing else _COMPACT)


def find_refused_one_of(text: str) -> str:
    """JSON pointer of the first oneOf in a schema that the library does not take: all others stand as anyOf."""
    paths = [path for path, node in walk(json.loads(text)) if "oneOf" in node]
    for tried in paths[:_MAX_TRIED]:
        schema = json.loads(text)
        for path, node in walk(schema):
            if "oneOf" in node and path != tried:
                others = node.pop("oneOf")
                if "anyOf" not in node:
                    node["anyOf"] = others
        grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=_COMPACT)
        if ONE_OF in llguidance.LLMatcher.validate_grammar(grammar):
            return tried
    return paths[0] if paths else "#"
