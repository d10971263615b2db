"""Puts callers' values into messages, and names the parameter whose value has no form there. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from octavo.errors import InvalidArgumentError

M = TypeVar("M", bound=Message)

_WHOLE = {
    FieldDescriptor.CPPTYPE_INT32: "a whole number of 32 bits",
    FieldDescriptor.CPPTYPE_INT64: "a whole number of 64 bits",
}
_NOUNS = {
    FieldDescriptor.CPPTYPE_DOUBLE: "a number",
    FieldDescriptor.CPPTYPE_BOOL: "true or false",
    FieldDescriptor.CPPTYPE_STRING: "text",
    FieldDescriptor.CPPTYPE_MESSAGE: "what the protocol has there",
    **_WHOLE,
}
_PLURALS = {
    FieldDescriptor.CPPTYPE_STRING: "texts",
    FieldDescriptor.CPPTYPE_INT32: "whole numbers of 32 bits",
}
MAX_SECONDS = 315_576_000_000


def put(message: Message, name: str, value: Any, param: str = "") -> None:
    """Set a field; None leaves it alone. Raises InvalidArgumentError with ``param``, by default the field's name."""
    if value is None:
        return
    field = message.DESCRIPTOR.fields_by_name[name]
    param = param or name
    try:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, name).update(value)
        elif field.is_repeated:
            if isinstance(value, str | bytes):
                # It would be taken for a list of its letters.
                raise TypeError
            getattr(message, name).extend(value)
        elif field.message_type is not None:
            getattr(message, name).CopyFrom(value)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_BOOL and not isinstance(value, bool):
            raise TypeError
        else:
            setattr(message, name, value)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise wrong(param, _expected(field), value) from error


def build(kind: type[M], params: Mapping[str, str] | None = None, **fields: Any) -> M:
    """A message of fields; ``params`` are the parameters' names where they are not the fields'."""
    message = kind()
    for name, value in fields.items():
        put(message, name, value, (params or {}).get(name, name))
    return message


def duration(seconds: Any, param: str) -> Duration:
    """A duration in seconds; raises InvalidArgumentError for what is none."""
    number = check_number(seconds, param)
    if abs(number) > MAX_SECONDS:
        raise wrong(param, f"at most {MAX_SECONDS} seconds", seconds)
    found = Duration()
    found.FromNanoseconds(round(number * 1e9))
    return found


def check_number(value: Any, param: str) -> float:
    """A finite number; raises InvalidArgumentError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(param, "a number", value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise wrong(param, "a finite number", value)
    return number


def wrong(param: str, expected: str, value: Any) -> InvalidArgumentError:
    """The error for a value of another type or size."""
    said = repr(value)
    return InvalidArgumentError(
        f"{param} must be {expected}, not {said if len(said) <= 60 else said[:57] + '...'}", param=param
    )


def _expected(field: Any) -> str:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return "numbers by token id"
    if field.is_repeated:
        return f"a list of {_PLURALS.get(field.cpp_type, 'values')}"
    return _NOUNS.get(field.cpp_type, "a value")
