"""Checks what a caller asks to have built, as far as the builder's libraries are not needed. Knows no protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo_common.jobs.builds import ARS, CONTEXT_LENGTH, RECIPE, BuildSpec
from octavo_gateway.checks import check_name, check_real, check_strings, check_text, check_whole, refuse

MAX_NAME_CHARS = 255
MAX_PATH_CHARS = 4096
MAX_TARGETS = 16
MAX_ARS = 8
MAX_OPTIONS = 64
MAX_OPTION_CHARS = 4096
MAX_RECIPE_BYTES = 256 * 1024
MAX_TEXTS = 64
MAX_TEXTS_BYTES = 4 << 20
MAX_CONTEXT = 1 << 20
MAX_PRIORITY = 100
MAX_TIMEOUT_S = 366 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RawBuild:
    """What a caller wrote."""

    model: str
    targets: Sequence[str]
    # One of the two, or neither.
    recipe: str
    recipe_yaml: str | None
    recipe_texts: Mapping[str, str]
    # 0 takes the default.
    context_length: int
    ars: Sequence[int]
    options: Mapping[str, str]
    target_options: Mapping[str, str]
    idempotency_key: str = ""
    timeout_s: float | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidBuild:
    """What is accepted."""

    spec: BuildSpec
    idempotency_key: str | None
    timeout_s: float | None
    priority: int


def validate(raw: RawBuild) -> ValidBuild:
    """Check it. Raises InvalidArgument with the field's name."""
    return ValidBuild(
        spec=_spec(raw),
        idempotency_key=check_name(raw.idempotency_key, "idempotency_key", MAX_NAME_CHARS) or None,
        timeout_s=_timeout(raw.timeout_s),
        priority=check_whole(raw.priority, "priority", -MAX_PRIORITY, MAX_PRIORITY),
    )


def _spec(raw: RawBuild) -> BuildSpec:
    if not check_name(raw.model, "model", MAX_PATH_CHARS):
        refuse("no model is named", "model", hint="a path on the edge builder's host, or a name such as smollm2-135m")
    targets = check_strings(raw.targets, "targets", "target", max_strings=MAX_TARGETS, max_chars=MAX_NAME_CHARS)
    if not targets or len(set(targets)) != len(targets):
        refuse("targets are to be named, each once", "targets", hint="for example onnxruntime")
    context_length = check_whole(raw.context_length, "context_length", 0, MAX_CONTEXT) or CONTEXT_LENGTH
    return BuildSpec(
        model=raw.model,
        targets=targets,
        recipe="" if raw.recipe_yaml is not None else check_name(raw.recipe, "recipe", MAX_NAME_CHARS) or RECIPE,
        recipe_yaml=_recipe(raw.recipe_yaml),
        recipe_texts=_texts(raw.recipe_texts),
        context_length=context_length,
        ars=_ars(raw.ars, context_length),
        options=_options(raw.options, "options"),
        target_options=_options(raw.target_options, "target_options"),
    )


def _recipe(text: str | None) -> str:
    if text is not None and len(check_text(text, "recipe_yaml").encode()) > MAX_RECIPE_BYTES:
        refuse(f"the recipe has more than {MAX_RECIPE_BYTES} bytes", "recipe_yaml")
    return check_name(text or "", "recipe_yaml", MAX_RECIPE_BYTES)


def _texts(texts: Mapping[str, str]) -> dict[str, str]:
    if len(texts) > MAX_TEXTS:
        refuse(f"at most {MAX_TEXTS} texts are taken, and there are {len(texts)}", "recipe_texts")
    if sum(len(text.encode()) for text in texts.values()) > MAX_TEXTS_BYTES:
        refuse(f"the recipe's texts have more than {MAX_TEXTS_BYTES} bytes together", "recipe_texts")
    return {
        check_name(name, "recipe_texts", MAX_PATH_CHARS): check_name(text, "recipe_texts", MAX_TEXTS_BYTES)
        for name, text in texts.items()
    }


def _ars(ars: Sequence[int], context_length: int) -> tuple[int, ...]:
    if not ars:
        # The default fits any context that a graph of one token fits.
        return tuple(ar for ar in ARS if ar < context_length)
    if len(ars) > MAX_ARS or len(set(ars)) != len(ars):
        refuse(f"ars are at most {MAX_ARS} numbers, each once", "ars", hint="for example 128 and 1")
    for ar in ars:
        check_whole(ar, "ars", 1, context_length - 1)
    return tuple(sorted(ars, reverse=True))


def _options(options: Mapping[str, str], param: str) -> dict[str, str]:
    if len(options) > MAX_OPTIONS:
        refuse(f"at most {MAX_OPTIONS} {param} are taken, and there are {len(options)}", param)
    for name, value in options.items():
        if not check_name(name, param, MAX_NAME_CHARS):
            refuse(f"one of the {param} has no name", param)
        check_name(value, param, MAX_OPTION_CHARS)
    return dict(options)


def _timeout(timeout_s: float | None) -> float | None:
    if timeout_s is None:
        return None
    if not 0 < check_real(timeout_s, "timeout") <= MAX_TIMEOUT_S:
        refuse(f"timeout must be above 0 and at most {MAX_TIMEOUT_S:.0f} seconds", "timeout")
    return timeout_s
