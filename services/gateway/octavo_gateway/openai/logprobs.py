"""Log-probabilities in OpenAI's two forms, and vLLM's for prompts. Pure but for a tokenizer, which names the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo_common.jobs.spec import TokenLogprob
from octavo_common.text.tokenizer import Tokenizer


class Names:
    """Tokens as text and bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def data(self, token_id: int) -> bytes:
        """The token's bytes."""
        return self._tokenizer.token_bytes(token_id)

    def text(self, token_id: int) -> str:
        """The token as text; bytes that are none by themselves are written out as OpenAI does, so no two are alike."""
        data = self.data(token_id)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _told(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        return {"token": self.text(token_id), "logprob": logprob, "bytes": list(self.data(token_id))}

    def chat(self, ids: Sequence[int], told: Sequence[TokenLogprob]) -> dict[str, Any]:
        """What stands under `logprobs` in a choice of a chat. A logprob that nobody knows is null."""
        content = [
            self._told(token_id, one.logprob) | {"top_logprobs": [self._told(*best) for best in one.top]}
            for token_id, one in zip(ids, told, strict=True)
        ]
        return {"content": content, "refusal": None}

    def completion(self, ids: Sequence[int], told: Sequence[TokenLogprob]) -> dict[str, Any]:
        """The same in a completion. Beside the likeliest tokens the chosen one stands there always."""
        return {
            "tokens": [self.text(token_id) for token_id in ids],
            "token_logprobs": [one.logprob for one in told],
            "top_logprobs": [self._top(token_id, one) for token_id, one in zip(ids, told, strict=True)],
            "text_offset": [one.text_offset for one in told],
        }

    def _top(self, token_id: int, one: TokenLogprob) -> dict[str, float] | None:
        if one.logprob is None:
            return None
        found = {self.text(token): logprob for token, logprob in one.top}
        return found if any(token == token_id for token, _ in one.top) else found | {self.text(token_id): one.logprob}

    def prompt(self, ids: Sequence[int], told: Sequence[TokenLogprob]) -> list[dict[str, Any] | None]:
        """VLLM's `prompt_logprobs`: by token id, null for the first token."""
        return [self._of_prompt(token_id, one) for token_id, one in zip(ids, told, strict=True)]

    def _of_prompt(self, token_id: int, one: TokenLogprob) -> dict[str, Any] | None:
        if one.logprob is None:
            return None
        ranked = {token: (logprob, rank) for rank, (token, logprob) in enumerate(one.top, 1)}
        ranked[token_id] = (one.logprob, one.rank)
        return {
            str(token): {"logprob": logprob, "rank": rank, "decoded_token": self.text(token)}
            for token, (logprob, rank) in ranked.items()
        }
