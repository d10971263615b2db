"""Parameters that other servers know and this one does not: which are refused, and which make no difference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo_gateway.openai.errors import BadRequest

# They change the answer, except with these values, which ask for what is done anyway. None always does.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "typical_p": (1,),
    "suffix": ("",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
}
# They are there, with one value. What the others of the above ask for is not there at all.
_ONE_VALUE = frozenset(
    {
        "modalities",
        "verbosity",
        "add_generation_prompt",
        "skip_special_tokens",
        "spaces_between_special_tokens",
    }
)
# They concern the provider's business, never the answer's tokens.
_IGNORED = frozenset(
    {
        "metadata",
        "moderation",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)


# Fields of stream_options that concern the transport, never the text.
_IGNORED_STREAM_OPTIONS = frozenset({"include_obfuscation"})


def refuse_unsupported(extra: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the parameters that are ignored. Raises BadRequest for one that may change the answer, or is unknown."""
    ignored: list[str] = []
    for name, value in extra.items():
        if value is None:
            continue
        if name in _IGNORED:
            ignored.append(name)
        elif name not in _NEUTRAL:
            raise _unknown(name)
        elif not any(_equal(value, neutral) for neutral in _NEUTRAL[name]):
            raise BadRequest(_refusal(name), code="UNSUPPORTED_PARAMETER", param=name, hint="leave it out")
    return tuple(ignored)


def refuse_unknown_options(extra: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the fields of stream_options that are ignored. Raises BadRequest for one that there is not."""
    names = [f"stream_options.{name}" for name, value in extra.items() if value is not None]
    unknown = [name for name in names if name.partition(".")[2] not in _IGNORED_STREAM_OPTIONS]
    if unknown:
        raise _unknown(unknown[0])
    return tuple(names)


def _unknown(name: str) -> BadRequest:
    return BadRequest(f"there is no parameter {name[:80]!r}", code="UNKNOWN_PARAMETER", param=name[:80])


def _refusal(name: str) -> str:
    if name in _ONE_VALUE:
        (value,) = _NEUTRAL[name]
        return f"{name}: only {json.dumps(value)} is supported"
    return f"{name} is not supported in this release"


def _equal(value: Any, neutral: Any) -> bool:
    """Equality that does not take True for 1."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
