"""The checks of single values that all validation is made of: each returns the value or refuses it by its name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

from octavo_common.errors import InvalidArgument

MAX_INT32 = 2**31 - 1
MAX_TOKEN_IDS = 1_000_000


def check_token_ids(ids: Sequence[int], param: str, *, max_ids: int = MAX_TOKEN_IDS) -> tuple[int, ...]:
    """Ids as a tuple; raises InvalidArgument if one is no int32 >= 0, or if there are too many."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Sequence):
        refuse(f"{param} must be a list of token ids", param)
    if len(ids) > max_ids:
        refuse(f"{param} has {len(ids)} ids, and at most {max_ids} are taken", param, code="PROMPT_TOO_LARGE")
    # By built-ins: a loop over a million ids would hold up every stream.
    if set(map(type, ids)) - {int}:
        refuse(f"{param} holds something that is no whole number", param)
    if ids and (min(ids) < 0 or max(ids) > MAX_INT32):
        refuse(f"token ids must be from 0 to {MAX_INT32}", param)
    return tuple(ids)


def refuse(message: str, param: str, *, hint: str = "", code: str | None = None) -> NoReturn:
    """Raise InvalidArgument with the name of the field."""
    raise InvalidArgument(message, param=param, hint=hint, code=code)


def check_name(value: str, param: str, max_chars: int) -> str:
    """Text that goes into a column as it is: bounded, without NUL, which Postgres has not."""
    found = check_text(value, param)
    if len(found) > max_chars:
        refuse(f"{param} has {len(found)} characters, and at most {max_chars} are taken", param)
    if "\0" in found:
        refuse(f"{param} holds a NUL character", param)
    return found


def check_text(value: str, param: str) -> str:
    """Text that has a UTF-8 form."""
    if not isinstance(value, str):
        refuse(f"{param} must be text, not {type(value).__name__}", param)
    try:
        value.encode()
    except UnicodeEncodeError:
        refuse(f"{param} holds a lone surrogate: it is no valid Unicode text", param)
    return value


def check_flag(value: bool, param: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        refuse(f"{param} must be true or false", param)
    return value


def check_whole(value: int, param: str, low: int, high: int) -> int:
    """A whole number in [low, high]."""
    if isinstance(value, bool) or not isinstance(value, int):
        refuse(f"{param} must be a whole number", param)
    if not low <= value <= high:
        refuse(f"{param} must be from {low} to {high}, not {value if abs(value) < 2**64 else 'this large'}", param)
    return value


def check_real(value: float, param: str) -> float:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse(f"{param} must be a number", param)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        refuse(f"{param} must be a finite number", param)
    return number


def check_range(value: float, param: str, low: float, high: float) -> float:
    """A finite number in [low, high]."""
    number = check_real(value, param)
    if not low <= number <= high:
        refuse(f"{param} must be from {low:g} to {high:g}, not {number}", param)
    return number


def check_strings(values: Sequence[str], param: str, noun: str, *, max_strings: int, max_chars: int) -> tuple[str, ...]:
    """Texts of at least one character without NUL: the row is JSON in Postgres, which has none."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence):
        refuse(f"{param} must be a list of strings", param)
    if len(values) > max_strings:
        refuse(f"at most {max_strings} {noun}s are taken, and there are {len(values)}", param)
    for value in values:
        text = check_text(value, param)
        if not text:
            refuse(f"a {noun} is empty", param)
        if len(text) > max_chars:
            refuse(f"a {noun} has {len(text)} characters, and at most {max_chars} are taken", param)
        if "\0" in text:
            refuse(f"a {noun} holds a NUL character", param)
    return tuple(values)
