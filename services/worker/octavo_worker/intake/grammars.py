"""Compiles grammars beside the event loop, a few at once: a large one holds up neither jobs nor the engine."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from octavo_common.errors import InvalidArgument

NUM_AT_ONCE = 2


class Compiles(Protocol):
    """The part of GrammarStore that is used here."""

    def compile(self, kind: str, text: str = "") -> str:
        """Name of the compiled grammar; the object keeps it. Raises OctavoError for one that cannot be used."""
        ...


class NoGrammars:
    """Compiles none."""

    def compile(self, kind: str, text: str = "") -> str:
        """Refuse it."""
        del text
        raise InvalidArgument(f"this worker enforces no grammars ({kind})", code="INVALID_GRAMMAR")


class GrammarLine:
    """Those who wait for a grammar, and the threads that compile."""

    def __init__(self, grammars: Compiles) -> None:
        self._grammars = grammars
        # Its threads are the bound: who stops waiting frees none before the grammar is done.
        self._threads = ThreadPoolExecutor(NUM_AT_ONCE, thread_name_prefix="grammar")

    async def compile(self, grammar: tuple[str, str] | None) -> str:
        """Name of the grammar for the engine; none for None. Raises OctavoError for one that cannot be used."""
        if grammar is None:
            return ""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._grammars.compile, *grammar)

    def close(self) -> None:
        """Compile nothing more. What is being compiled is left to end by itself: it is bounded."""
        self._threads.shutdown(wait=False, cancel_futures=True)
