"""How the text of a job's answer begins: one place for the worker that makes it and the gateway that counts it."""

from __future__ import annotations

from collections.abc import Sequence

from octavo_common.jobs.spec import GenerationSpec
from octavo_common.text.stream import TextStream
from octavo_common.text.tokenizer import Tokenizer


def answer_stream(tokenizer: Tokenizer, spec: GenerationSpec, prompt_ids: Sequence[int]) -> TextStream:
    """The stream of the answer's tokens.

    The answer to a raw prompt continues the prompt's text, so the space before its first word is its own; the answer to
    a chat, or to a prompt that has no text yet, opens a text.
    """
    continues = spec.echo or spec.operation != "chat"
    has_text = any(tokenizer.pieces[token_id] is not None for token_id in prompt_ids)
    return TextStream(
        tokenizer,
        spec.stop,
        mid_text=continues and has_text,
        keep_stop=spec.include_stop,
        min_tokens=spec.min_tokens,
    )


def lead_text(tokenizer: Tokenizer, spec: GenerationSpec, prompt_ids: Sequence[int]) -> str:
    """What stands before the text of the answer's first token: the prompt, when it is echoed."""
    return tokenizer.decode(prompt_ids) if spec.echo else ""
