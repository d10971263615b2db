"""The helper process that renders chat templates. Run by path with an empty environment; imports only Jinja.

A template is a program that came with a model. Here it may loop or eat memory: the process has a limit of memory, a
timer that ends it, no environment and nothing to steal. It speaks length-prefixed JSON over its standard streams.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, BinaryIO

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# A message is its length in 4 bytes, little-endian, and JSON.
_HEADER_BYTES = 4


class _Refused(Exception):
    """The template called raise_exception: it does not take these messages."""


class _TooLong(Exception):
    """The rendered text is beyond the limit."""


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here its content is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which templates of models do not expect.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise _Refused(str(message))


def environment(now: Callable[[], float]) -> ImmutableSandboxedEnvironment:
    """The environment that templates of models are written for; `now` gives seconds since the epoch."""
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda form: datetime.fromtimestamp(now()).strftime(form)
    return env


class Renderer:
    """One template, compiled when first used."""

    def __init__(self, source: str, max_chars: int) -> None:
        self._source = source
        self._max_chars = max_chars
        self._now = 0.0
        self._env = environment(lambda: self._now)
        self._template: jinja2.Template | None = None

    def render(self, values: dict[str, Any], now: float) -> dict[str, Any]:
        """Answer {"text"} or {"error", "refused"}."""
        self._now = now
        try:
            if self._template is None:
                self._template = self._env.from_string(self._source)
            return {"text": self._collect(self._template, values)}
        except _Refused as error:
            return {"error": str(error)[:1000], "refused": True}
        except _TooLong:
            return {"error": f"it gives more than {self._max_chars} characters", "refused": False}
        except MemoryError:
            return {"error": "it needs too much memory", "refused": False}
        except RecursionError:
            return {"error": "it calls itself too often", "refused": False}
        except Exception as error:  # whatever a foreign program may raise
            return {"error": f"{type(error).__name__}: {error}"[:1000], "refused": False}

    def _collect(self, template: jinja2.Template, values: dict[str, Any]) -> str:
        parts: list[str] = []
        num_chars = 0
        for part in template.generate(values):
            num_chars += len(part)
            if num_chars > self._max_chars:
                raise _TooLong
            parts.append(part)
        return "".join(parts)


def _limit_memory(num_bytes: int) -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))
    except (ImportError, ValueError, OSError):
        return  # a system without this limit: the timer still ends the process


def _read(stream: BinaryIO) -> dict[str, Any] | None:
    header = stream.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return None
    length = int.from_bytes(header, "little")
    data = stream.read(length)
    return json.loads(data) if len(data) == length else None


def _write(stream: BinaryIO, value: dict[str, Any]) -> None:
    try:
        data = json.dumps(value).encode("ascii")
    except MemoryError:
        data = json.dumps({"error": "it needs too much memory", "refused": False}).encode("ascii")
    stream.write(len(data).to_bytes(_HEADER_BYTES, "little") + data)
    stream.flush()


def main() -> None:
    """Answer requests until the input ends. Whoever asks learns from the exit what else may happen; stderr is a log."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _serve()
    except (MemoryError, OSError):
        # No room for the messages themselves, or nobody to answer. Not by way of the interpreter's end, which would
        # try to write once more.
        os._exit(1)


def _serve() -> None:
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    setting = _read(requests)
    if setting is None:
        return
    _limit_memory(setting["max_bytes"])
    renderer = Renderer(setting["source"], setting["max_chars"])
    _write(answers, {"ready": True})
    while (request := _read(requests)) is not None:
        # Should the parent be gone, a template that never ends must not run for ever: the signal's default ends us.
        signal.setitimer(signal.ITIMER_REAL, setting["deadline_s"])
        answer = renderer.render(request["values"], request["now"])
        _write(answers, answer)
        signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    main()
