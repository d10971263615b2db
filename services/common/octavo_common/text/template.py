"""Renders a chat template in a helper process of its own, within a time, a memory and an output limit.

A process per template: what a template does, it does to its own model's requests only. A helper that overstays is
killed, and the next render starts a new one. Knows nothing of tokens. Blocks: call it from a thread.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import structlog

from octavo_common.clock import Clock, SystemClock
from octavo_common.errors import FailedPrecondition, InvalidArgument, Unavailable
from octavo_common.text.helper import Helper, HelperLost

log = structlog.get_logger(__name__)

_CODE = "TEMPLATE_ERROR"
_HINT = "the template came with the model's files; plain prompts do without it"
_START_S = 20.0
_MAX_BYTES = 512 * 1024 * 1024


class TemplateError(FailedPrecondition):
    """The model's chat template is broken, or was stopped at a limit."""

    code = _CODE


class TemplateRefused(InvalidArgument):
    """The model's chat template does not take these messages."""

    code = _CODE


class TemplateBusy(Unavailable):
    """An earlier render overstays its time; others do not wait for it."""

    code = _CODE


class ChatTemplate:
    """One template and the process that renders it. May be shared between threads; they take turns."""

    def __init__(
        self,
        source: str,
        *,
        special_tokens: Mapping[str, str] | None = None,
        deadline_s: float = 2.0,
        max_chars: int = 4_000_000,
        clock: Clock | None = None,
    ) -> None:
        """Starts nothing yet: the helper starts with the first render. Deadline and output limit are per render."""
        self._source = source
        self._special_tokens = dict(special_tokens or {})
        self._deadline_s = deadline_s
        self._max_chars = max_chars
        self._clock: Clock = clock or SystemClock()
        self._turn = threading.Lock()
        self._helper: Helper | None = None
        # After a render that overstayed, until one that did not: nobody queues behind what may overstay again.
        self._suspect = False

    def render(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> str:
        """The chat as one text.

        Raises TemplateRefused (the template's own objection), TemplateError (a fault or a limit), TemplateBusy.
        """
        values = {
            "messages": [dict(m) for m in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **self._special_tokens,
        }
        request = json.dumps({"values": values, "now": self._clock.time()}).encode("ascii")
        answer = self._take_turn(request)
        if "text" in answer:
            return answer["text"]
        if answer["refused"]:
            raise TemplateRefused(
                f"the model's chat template refuses the messages: {_clause(answer['error'])}", param="messages"
            )
        raise TemplateError(f"the model's chat template failed: {_clause(answer['error'])}", hint=_HINT)

    def start(self) -> None:
        """Start the helper now, so that the first render is as quick as the others."""
        with self._turn:
            self._ready_helper()

    def close(self) -> None:
        """End the helper. A later render starts a new one."""
        with self._turn:
            self._kill()

    def _take_turn(self, request: bytes) -> dict[str, Any]:
        was_suspect = self._suspect
        if not self._turn.acquire(blocking=not was_suspect):
            raise self._busy()
        try:
            if self._suspect and not was_suspect:
                # The one that we waited for overstayed.
                raise self._busy()
            return self._ask(request)
        finally:
            self._turn.release()

    def _busy(self) -> TemplateBusy:
        return TemplateBusy("the model's chat template overstays its time", retry_after_s=self._deadline_s)

    def _ask(self, request: bytes) -> dict[str, Any]:
        try:
            # JSON escapes take up to 12 bytes for a character.
            answer = self._ready_helper().ask(request, self._deadline_s, max_bytes=12 * self._max_chars + 4096)
        except HelperLost as error:
            self._kill()
            if not self._suspect:
                log.warning("template.stopped", reason=str(error))
            self._suspect = True
            raise TemplateError(f"the model's chat template was stopped: {error}", hint=_HINT) from error
        self._suspect = False
        return json.loads(answer)

    def _ready_helper(self) -> Helper:
        if self._helper is not None and self._helper.is_alive:
            return self._helper
        self._kill()
        helper = Helper(self._clock)
        # Also when nobody calls close: at the latest with the end of this process.
        weakref.finalize(self, helper.kill)
        self._helper = helper
        setting = {
            "source": self._source,
            "max_chars": self._max_chars,
            "max_bytes": _MAX_BYTES,
            # Later than ours: it matters only when this process is gone.
            "deadline_s": self._deadline_s + 5.0,
        }
        helper.ask(json.dumps(setting).encode("ascii"), _START_S, max_bytes=4096)
        return helper

    def _kill(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.kill()


def _clause(text: str) -> str:
    """A foreign message as the end of a sentence of ours: on one line, without its full stop."""
    return " ".join(text.split()).removesuffix(".")
