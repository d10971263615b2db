"""Structured output as requests of other servers say it: OpenAI's response_format, vLLM's structured_outputs."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ConfigDict, Field

from octavo_gateway.openai.errors import BadRequest
from octavo_gateway.openai.parts import Body, Flag

# Further fields of vLLM's: they only choose how it is done.
_IGNORED = frozenset({"_backend", "_backend_was_auto", "disable_fallback"})
# Our names of what can be asked for.
KINDS = {"json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "ebnf"}
# Our name, and what is said of it.
Given = tuple[str, Any]


class SchemaFormat(Body):
    """The schema of a response_format."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    name: str | None = None
    description: str | None = None
    # Pydantic's models have a method of the name.
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    # Schemas are always enforced.
    strict: bool | None = None


class ResponseFormat(Body):
    """text, json_object or json_schema."""

    type: str
    json_schema: SchemaFormat | None = None

    @property
    def fields(self) -> list[str]:
        """The fields that say what is asked for, also where that is refused."""
        if self.type == "text":
            return []
        return ["response_format.json_schema.schema" if self.type == "json_schema" else "response_format"]

    def given(self) -> list[Given]:
        """The kind and what is said of it. Raises BadRequest."""
        if self.type == "text":
            return []
        if self.type == "json_object":
            return [("json_object", True)]
        if self.type != "json_schema":
            raise BadRequest(
                f"response_format: the type {self.type[:64]!r} is not supported",
                code="UNSUPPORTED_PARAMETER",
                param="response_format.type",
                hint="types are text, json_object and json_schema",
            )
        schema = None if self.json_schema is None else self.json_schema.schema_
        if schema is None:
            param = "response_format.json_schema" + ("" if self.json_schema is None else ".schema")
            raise BadRequest(f"{param} is missing", code="INVALID_ARGUMENT", param=param)
        return [("json_schema", schema)]


class StructuredOutputs(Body):
    """One of the kinds."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: Flag = False
    # How JSON is spaced.
    disable_any_whitespace: Flag = False
    whitespace_pattern: str | None = None

    @property
    def fields(self) -> list[str]:
        """The fields that say what is asked for, in the order of `given`."""
        asked = [*self._values(), *(("json_object",) if self.json_object else ())]
        return [f"structured_outputs.{name}" for name in asked]

    def given(self) -> list[Given]:
        """The kind and what is said of it. Raises BadRequest for a field that there is not, or if nothing is asked."""
        for name, value in (self.model_extra or {}).items():
            if value not in (None, False) and name not in _IGNORED:
                raise BadRequest(
                    f"structured_outputs.{name[:64]} is not supported",
                    code="UNSUPPORTED_PARAMETER",
                    param=f"structured_outputs.{name[:64]}",
                )
        spacing = self._spacing()
        given: list[Given] = [(KINDS[name], value) for name, value in self._values().items()]
        if self.json_object:
            given.append(("json_schema", {"type": "object"}) if spacing else ("json_object", True))
        if not given:
            raise BadRequest(
                "structured_outputs asks for nothing",
                code="INVALID_ARGUMENT",
                param="structured_outputs",
                hint=f"give one of {', '.join(KINDS)}, json_object, or leave it out",
            )
        return [(kind, _spaced(value, spacing) if kind == "json_schema" else value) for kind, value in given]

    def _values(self) -> dict[str, Any]:
        values = {"json": self.json_, "regex": self.regex, "choice": self.choice, "grammar": self.grammar}
        return {name: value for name, value in values.items() if value is not None}

    def _spacing(self) -> dict[str, Any]:
        if self.whitespace_pattern is not None:
            return {"whitespace_pattern": self.whitespace_pattern}
        return {"whitespace_flexible": False} if self.disable_any_whitespace else {}


def _spaced(schema: Any, spacing: dict[str, Any]) -> Any:
    """The schema with its spacing in the place where the worker looks for it."""
    if not spacing:
        return schema
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError):
        return schema  # refused as what it is
    if not isinstance(value, dict):
        return schema
    options = value.get("x-guidance")
    return value | {"x-guidance": (options if isinstance(options, dict) else {}) | spacing}
