"""Says in our words why a grammar cannot be used: the reason, and where in the caller's text it lies. Pure.

The library's messages name its own options and stop codes, and no places in a JSON schema. They are read here once;
what is not known here is passed on as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

NO_OUTPUT = "no output follows it"
ONE_OF = "oneOf constraints are not supported"
_FORMATS = "date-time, time, date, duration, email, hostname, ipv4, ipv6, uuid, uri"
# Where schemas stand in a schema: by name, alone, and in lists.
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SINGLE = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames")
_LISTED = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_POSITION = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_REGEX = re.compile(r'^invalid regex "(?P<regex>.*)" \(in regex\): ', re.DOTALL)
_ONE_OF_SETTING = re.compile(ONE_OF + r"\. Enable [^\n]*")

Schema = dict[str, Any]


def plain_reason(kind: str, text: str, message: str) -> str:
    """One line: what is wrong, and where."""
    if "NoExtensionBias" in message:
        return NO_OUTPUT
    if kind in ("json_schema", "json_object"):
        return _line(_of_schema(text, message))
    position = _POSITION.match(message)
    rest = message[position.end() :] if position else message
    # What follows names our own stand-ins for tokens without text.
    rest = rest.partition("; following special tokens")[0]
    rest = _ONE_OF_SETTING.sub("it cannot be shown that what follows one schema of a oneOf follows no other", rest)
    regex = _REGEX.match(rest)
    if regex:
        rest = of_regex(rest[regex.end() :])
        if kind != "regex":
            rest = f"the regular expression /{_short(_unescaped(regex['regex']))}/: {rest}"
    if position and kind != "regex":
        rest = f"line {position[1]}, column {position[2]}: {rest}"
    return _line(rest.removeprefix("Failed to convert the grammar from GBNF to Lark: "))


def of_regex(message: str) -> str:
    """The reason in a regular expression's error, with the character at which it lies."""
    if "lookarounds not supported" in message:
        # The library's name for what looks at the text around.
        return r"word borders (\b), and ^ or $ inside of the expression, are not supported"
    head, error, tail = message.strip().partition("\nerror: ")
    if not error:
        return message
    reason = tail.splitlines()[0] if tail else "it cannot be read"
    # The expression, indented by four, above carets; there is more where it has several lines itself.
    lines = head.splitlines()
    if len(lines) != 3 or lines[2].strip(" ^"):
        return reason
    start, end = lines[2].find("^"), lines[2].rfind("^") + 1
    part = lines[1][start:end]
    return f"{reason}, at character {start - 3}" + (f": {_short(part)}" if part.strip() else "")


def _of_schema(text: str, message: str) -> str:
    try:
        schema = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return message
    for pattern, say in _SCHEMA_REASONS:
        found = re.search(pattern, message)
        if found:
            return say(schema, found.groups(), message)
    return message


def _unimplemented(schema: Any, found: tuple[str, ...], message: str) -> str:
    names = re.findall(r'"([^"]+)"', found[0])
    # The library names those of one place.
    where = next((path for path, node in walk(schema) if all(name in node for name in names)), "#")
    return f"{' and '.join(names)} at {where}: a keyword that cannot be enforced"


def _one_of(schema: Any, found: tuple[str, ...], message: str) -> str:
    return f"oneOf at {found[0]}: it cannot be shown that what follows one of its schemas follows no other"


def _format(schema: Any, found: tuple[str, ...], message: str) -> str:
    where = _having(schema, "format", lambda value: value == found[0])
    return f"the format {_short(found[0])!r} at {where} is not known: known are {_FORMATS}"


def _type(schema: Any, found: tuple[str, ...], message: str) -> str:
    where = _having(schema, "type", lambda value: found[0] in value if isinstance(value, list) else value == found[0])
    return f"the type {_short(found[0])!r} at {where} is none of JSON's"


def _pointer(schema: Any, found: tuple[str, ...], message: str) -> str:
    where = _having(schema, "$ref", lambda value: str(value).endswith("#" + found[0]))
    return f"$ref at {where}: the schema has no {_short(found[0])}"


def _remote(schema: Any, found: tuple[str, ...], message: str) -> str:
    where = _having(schema, "$ref", lambda value: str(value).startswith(found[0]))
    return f"$ref at {where}: {_short(found[0])} is no part of the schema, and nothing is fetched"


def _pattern(schema: Any, found: tuple[str, ...], message: str) -> str:
    def is_it(value: Any) -> bool:
        return str(value) in message

    where = next(
        (
            f"{keyword} at {path}"
            for path, node in walk(schema)
            for keyword in ("pattern", "patternProperties")
            if any(is_it(value) for value in (_names(node.get(keyword))))
        ),
        "pattern",
    )
    return f"{where}: {of_regex(message)}"


def _names(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value) if isinstance(value, dict) else []


def _unsatisfiable(schema: Any, found: tuple[str, ...], message: str) -> str:
    return f"no JSON value follows it: {found[0]}"


_SCHEMA_REASONS: tuple[tuple[str, Callable[[Any, tuple[str, ...], str], str]], ...] = (
    (r"Unimplemented keys: (\[.*\])", _unimplemented),
    (rf"{ONE_OF} at (.+)", _one_of),
    (r"Unknown format: (.*)", _format),
    (r"Invalid type: (.*)", _type),
    (r"Pointer '([^']*)' does not exist", _pointer),
    (r"Resource '([^']*)' is not present", _remote),
    (r"(regex parse error|lookarounds not supported)", _pattern),
    (r"Unsatisfiable schema: (.*)", _unsatisfiable),
)


def walk(schema: Any) -> Iterator[tuple[str, Schema]]:
    """Every schema in a schema with its JSON pointer, outer ones first. Not by recursion: depth is the caller's."""
    waiting: list[tuple[str, Any]] = [("#", schema)]
    while waiting:
        path, node = waiting.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        inner: list[tuple[str, Any]] = []
        for key, value in node.items():
            at = f"{path}/{_escaped(str(key))}"
            if key in _NAMED and isinstance(value, dict):
                inner += [(f"{at}/{_escaped(name)}", part) for name, part in value.items()]
            elif key in _LISTED and isinstance(value, list):
                inner += [(f"{at}/{index}", part) for index, part in enumerate(value)]
            elif key in _SINGLE:
                inner.append((at, value))
        waiting += reversed(inner)


def _having(schema: Any, keyword: str, is_it: Callable[[Any], bool]) -> str:
    return next((path for path, node in walk(schema) if keyword in node and is_it(node[keyword])), "#")


def _escaped(name: str) -> str:
    return _short(name.replace("~", "~0").replace("/", "~1"))


def _unescaped(text: str) -> str:
    return text.replace("\\\\", "\\")


def _short(text: str) -> str:
    return text if len(text) <= 64 else text[:61] + "..."


def _line(text: str) -> str:
    return (text.strip().splitlines() or ["unknown reason"])[0][:300]
