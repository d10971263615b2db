"""Turns prompts into token ids that fit the model, off the event loop. Knows no jobs table and no streams.

Tokenizers come from the artifact store by digest, so a gateway needs neither model files nor a live worker.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import structlog

from octavo_common.errors import InvalidArgument, NotFound, OctavoError, PromptTooLong, Unavailable
from octavo_common.jobs.model import Job
from octavo_common.jobs.spec import GenerationSpec, ModelCard
from octavo_common.store import ArtifactStore
from octavo_common.text.answers import answer_stream, lead_text
from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_gateway.answers import check_told
from octavo_gateway.requests import ChatPrompt, Prompt, TextPrompt, ValidRequest

log = structlog.get_logger(__name__)
T = TypeVar("T")

NUM_THREADS = 4
MAX_TOKENIZERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrompt:
    """A prompt as its model reads it, and what is left for the answer."""

    ids: tuple[int, ...]
    # What was asked for, cut to what the context leaves.
    max_tokens: int
    # Token sequences of the bad words.
    bad_words: tuple[tuple[int, ...], ...] = ()


class Prompts:
    """Tokenizers by digest, and the threads in which they work."""

    def __init__(self, artifacts: ArtifactStore, *, max_tokenizers: int = MAX_TOKENIZERS) -> None:
        self._artifacts = artifacts
        self._max_tokenizers = max_tokenizers
        self._tokenizers: OrderedDict[str, asyncio.Future[Tokenizer]] = OrderedDict()
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="prompts")

    async def prepare(self, request: ValidRequest, card: ModelCard) -> PreparedPrompt:
        """Template, tokenise and measure a prompt.

        Raises PromptTooLong when it leaves no room for a token, InvalidArgument for ids outside the vocabulary and for
        an empty prompt, and what the chat template raises.
        """
        limit = card.max_sequence_tokens
        ids = await self._ids(request.prompt, card)
        if not ids:
            raise InvalidArgument("the prompt has no tokens", code="EMPTY_PROMPT", param="prompt")
        if len(ids) >= limit:
            raise PromptTooLong(num_tokens=len(ids), limit=limit)
        check_vocabulary(request.stop_token_ids, card, "stop_token_ids")
        check_vocabulary(request.steering.allowed_token_ids, card, "allowed_token_ids")
        check_vocabulary([token for token, _ in request.steering.logit_bias], card, "logit_bias")
        left = limit - len(ids)
        max_tokens = left if request.max_tokens is None else min(request.max_tokens, left)
        check_told(request.answers, num_prompt_tokens=len(ids), max_tokens=max_tokens)
        return PreparedPrompt(
            ids=tuple(ids),
            max_tokens=max_tokens,
            bad_words=await self._bad_words(request.steering.bad_words, card),
        )

    async def count_chars(self, job: Job, ids: Sequence[int], card: ModelCard | None) -> int:
        """Characters of the answer that belong to its first tokens, as their stream had them.

        Raises Unavailable when the job's tokenizer is not known any more.
        """
        if card is None:
            raise Unavailable(
                f"the tokenizer of job {job.id} is not known here now",
                hint="read its result from the job",
            )
        tokenizer = await self.tokenizer(card.tokenizer_digest)
        spec = GenerationSpec.from_json(dict(job.payload))
        return await self._in_thread(lambda: _num_chars(tokenizer, spec, job.prompt_ids, ids))

    async def warm(self, card: ModelCard) -> None:
        """Load a model's tokenizer and start its template, so that the first request is as quick as the others."""
        try:
            tokenizer = await self.tokenizer(card.tokenizer_digest)
            if tokenizer.has_chat_template:
                await self._in_thread(lambda: tokenizer.chat([{"role": "user", "content": "x"}]))
        except OctavoError as error:
            # Nobody has asked for it yet; who does gets the error.
            log.warning("prompts.warm_failed", model=card.name, error=error.message)

    async def tokenizer(self, digest: str) -> Tokenizer:
        """The tokenizer of a digest; loaded once. Raises Unavailable when nobody has stored it (yet)."""
        loading = self._tokenizers.get(digest)
        if loading is None:
            loading = self._tokenizers[digest] = asyncio.ensure_future(self._load(digest))
            self._forget_oldest()
        self._tokenizers.move_to_end(digest)
        try:
            # Shielded: others may wait for it too.
            return await asyncio.shield(loading)
        except Exception:
            # Asked again, it is tried again.
            if self._tokenizers.get(digest) is loading:
                del self._tokenizers[digest]
            raise

    async def close(self) -> None:
        """End the threads and the templates' processes."""
        loadings = list(self._tokenizers.values())
        self._tokenizers.clear()
        # A load that failed has told whoever waited for it.
        for loaded in await asyncio.gather(*loadings, return_exceptions=True):
            if not isinstance(loaded, BaseException):
                loaded.close()
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def _ids(self, prompt: Prompt, card: ModelCard) -> Sequence[int]:
        limit = card.max_sequence_tokens
        if isinstance(prompt, TextPrompt):
            tokenizer, text = await self.tokenizer(card.tokenizer_digest), prompt.text
            return await self._in_thread(lambda: tokenizer.encode(text, max_tokens=limit))
        if isinstance(prompt, ChatPrompt):
            tokenizer = await self.tokenizer(card.tokenizer_digest)
            messages = [{"role": m.role, "content": m.content} for m in prompt.messages]
            return await self._in_thread(lambda: tokenizer.chat(messages, max_tokens=limit))
        check_vocabulary(prompt.ids, card, "token_ids")
        return prompt.ids

    async def _bad_words(self, words: Sequence[str], card: ModelCard) -> tuple[tuple[int, ...], ...]:
        if not words:
            return ()
        tokenizer = await self.tokenizer(card.tokenizer_digest)
        return await self._in_thread(lambda: _sequences(tokenizer, words))

    async def _load(self, digest: str) -> Tokenizer:
        try:
            data = await self._artifacts.get(digest)
        except NotFound as error:
            raise Unavailable(
                "the model's tokenizer is not stored yet",
                hint="a worker stores it when it starts",
                retry_after_s=1.0,
            ) from error
        tokenizer = await self._in_thread(lambda: Tokenizer.from_bundle(TokenizerBundle.from_bytes(data)))
        log.info("prompts.tokenizer_loaded", digest=digest, vocab_size=tokenizer.vocab_size)
        return tokenizer

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _forget_oldest(self) -> None:
        while len(self._tokenizers) > self._max_tokenizers:
            _, oldest = self._tokenizers.popitem(last=False)
            oldest.add_done_callback(_close_tokenizer)


def check_vocabulary(ids: Sequence[int], card: ModelCard, param: str) -> None:
    """Raises InvalidArgument if the model has no such token."""
    largest = max(ids, default=0)
    if largest >= card.vocab_size:
        raise InvalidArgument(
            f"token id {largest} is outside the vocabulary of {card.vocab_size} tokens",
            code="UNKNOWN_TOKEN",
            param=param,
        )


def _sequences(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """How the words come as tokens: at the start of a text or inside a word, and after a space."""
    texts = [
        text for word in words for text in ((word.lstrip(" "), " " + word.lstrip(" ")) if word.strip(" ") else (word,))
    ]
    found = (tuple(tokenizer.encode(text, add_special=False)) for text in texts)
    return tuple(dict.fromkeys(ids for ids in found if ids))


def _num_chars(tokenizer: Tokenizer, spec: GenerationSpec, prompt: Sequence[int], ids: Sequence[int]) -> int:
    num_chars = len(answer_stream(tokenizer, spec, prompt).replay(ids).text)
    return num_chars + len(lead_text(tokenizer, spec, prompt))


def _close_tokenizer(loading: asyncio.Future[Tokenizer]) -> None:
    if not loading.cancelled() and loading.exception() is None:
        loading.result().close()
