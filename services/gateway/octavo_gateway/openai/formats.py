"""Structured output as requests of other servers say it: OpenAI's response_format, vLLM's structured_outputs."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from octavo_gateway.openai.errors import BadRequest
from octavo_gateway.openai.parts import Body, Flag

# Further fields of vLLM's: some only choose how it is done, the others are not there.
_IGNORED = frozenset({"_backend", "_backend_was_auto", "disable_any_whitespace", "disable_fallback"})


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

    def given(self) -> list[tuple[str, Any]]:
        """The kind and what is said of it. Raises BadRequest."""
        if self.type == "text":
            return []
        if self.type == "json_object":
            return [("json_object", True)]
        if self.type != "json_schema":
            raise BadRequest(
                f"response_format: the type {self.type[:64]!r} is not supported",
                code="UNSUPPORTED_PARAMETER",
                param="response_format",
                hint="types are text, json_object and json_schema",
            )
        if self.json_schema is None or self.json_schema.schema_ is None:
            raise BadRequest(
                "response_format has no json_schema.schema", code="INVALID_ARGUMENT", param="response_format"
            )
        return [("json_schema", self.json_schema.schema_)]


class StructuredOutputs(Body):
    """One of the kinds."""

    json_: dict[str, Any] | str | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: Flag = False

    def given(self) -> list[tuple[str, Any]]:
        """The kind and what is said of it. Raises BadRequest for a field that there is not."""
        for name, value in (self.model_extra or {}).items():
            if value not in (None, False) and name not in _IGNORED:
                raise BadRequest(
                    f"structured_outputs.{name[:64]} is not supported",
                    code="UNSUPPORTED_PARAMETER",
                    param="structured_outputs",
                )
        plain: list[tuple[str, Any]] = [("json_object", True)] if self.json_object else []
        return plain + given_of(self.json_, self.regex, self.choice, self.grammar)


def given_of(schema: Any, regex: str | None, choice: list[str] | None, grammar: str | None) -> list[tuple[str, Any]]:
    """Those that were given."""
    kinds = (("json_schema", schema), ("regex", regex), ("choice", choice), ("ebnf", grammar))
    return [(kind, value) for kind, value in kinds if value is not None]
