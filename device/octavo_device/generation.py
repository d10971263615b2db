"""Answers: feeds what the model has not seen yet and draws tokens until it ends, or the context is full."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo_device.errors import ContextFull, DoesNotFit
from octavo_device.model import DeviceModel
from octavo_device.sampling import Sampler, Sampling

__all__ = ["Generation"]


class Generation:
    """One sequence of a model. What it shares with the tokens that were fed before is not computed again.

    It begins with the bundle's prefix, which is not fed and takes its slots of the context.
    """

    def __init__(self, model: DeviceModel) -> None:
        self._model = model
        self._fed: list[int] = list(model.prefix.token_ids)
        self.finish_reason = ""  # of the last answer: stop, length or context

    def answer(self, prompt: Sequence[int], sampling: Sampling, max_tokens: int | None = None) -> Iterator[int]:
        """Tokens behind the prompt, one by one, without the one that ends the answer.

        A prompt that begins with the prefix's tokens goes on from them; before any other the prefix is put (see
        ``Prefix.before``).

        Raises:
            ContextFull: The prompt has no room.
            DoesNotFit: The prompt is empty or the prefix alone, or has tokens that are not the model's.
        """
        model, sampler = self._model, Sampler(sampling)
        num_before, prompt = model.prefix.num_tokens, model.prefix.before(prompt)
        if len(prompt) > model.spec.context_length:
            counted = f", {num_before} of them the bundle's prefix" if num_before else ""
            told = f"the prompt has {len(prompt)} tokens{counted}, and the context {model.spec.context_length}"
            raise ContextFull(told, hint="shorten it, or begin anew")
        if num_before and len(prompt) == num_before:
            raise DoesNotFit("there is nothing behind the bundle's prefix to go on from", hint="give a prompt")
        # At least the last token is fed: its logits are wanted. What the cache did not keep is fed again.
        shared = min(_common(self._fed, prompt), model.cache.capacity, max(0, len(prompt) - 1))
        model.cache.cut(shared)
        del self._fed[shared:]
        logits = self._feed(prompt[shared:])
        num_made, self.finish_reason = 0, "length"
        while max_tokens is None or num_made < max_tokens:
            token = sampler.next(logits)
            if token in model.bundle.eos_token_ids:
                self.finish_reason = "stop"
                return
            yield token
            num_made += 1
            if max_tokens is not None and num_made >= max_tokens:
                return
            if len(self._fed) >= model.spec.context_length:
                self.finish_reason = "context"
                return
            logits = self._feed([*self._take_back(), token])

    def _take_back(self) -> list[int]:
        """What must be fed again for one more token: all that the cache did not keep, if it is for larger steps."""
        cache = self._model.cache
        if self._model.num_free > 0:
            return []
        tokens = self._fed[cache.capacity :]
        cache.cut(cache.capacity)
        del self._fed[cache.capacity :]
        return tokens

    def _feed(self, tokens: Sequence[int]):  # noqa: ANN202 - an array
        logits = self._model.feed(tokens)
        self._fed.extend(tokens)
        return logits


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the beginning that both have."""
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
