"""What is asked of an edge builder, as a form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import streamlit as st

from octavo import Build, BuildTarget, InvalidArgumentError
from octavo_ui import api

# Suggestions: whatever else is typed, the builder judges it.
PRESETS = ("w8a16", "w4a16")
PRESET, YAML = "Preset", "YAML"
# Of all together, as the gateway takes them.
MOST_TEXT_MIB = 4
EXAMPLE = """precision:
  activations: int16
  kv_cache: int8
  blocks: {qtype: int8, granularity: PCQ}
calibration: {method: minmax, num_windows: 60}
gates: {max_mean_kl_nats: 0.01, max_ppl_ratio: 1.01}
"""


def order(targets: Sequence[BuildTarget]) -> Build | None:
    """Draw the form; returns the build that was asked for with it, now. Raises OctavoError if it is refused."""
    first, second = st.columns([3, 2])
    model = first.text_input("Model", placeholder="smollm2-135m", help="A name, or a path on the edge builder's host")
    lacking = {target.name: target.missing for target in targets}
    # A key and plain labels: what is chosen stays so while a builder finds out what it lacks.
    chosen = second.multiselect("Targets", list(lacking), key="targets")
    for name in chosen:
        for reason in lacking[name]:
            st.warning(f"{name}: {reason}")
    asked: dict[str, Any] = {"targets": chosen, **_recipe(), **_lengths()}
    with st.expander("Options"):
        asked |= _options()
    if not st.button("Build", type="primary", icon=":material/play_arrow:"):
        return None
    # Read when they are asked for, so that half a line is no error yet.
    return api.client().builds.submit(model.strip(), **_parsed(asked))


def _recipe() -> dict[str, Any]:
    kind = st.radio("Recipe", [PRESET, YAML], horizontal=True)
    if kind == PRESET:
        name = st.selectbox("Preset", PRESETS, accept_new_options=True, label_visibility="collapsed")
        return {"recipe": name or ""}
    text = st.text_area("YAML", EXAMPLE, height=220, label_visibility="collapsed")
    files = st.file_uploader("Texts that it names", accept_multiple_files=True, max_upload_size=MOST_TEXT_MIB) or []
    return {"recipe_yaml": text, "recipe_texts": {file.name: file.getvalue() for file in files}}


def _lengths() -> dict[str, Any]:
    first, second = st.columns(2)
    return {
        "context_length": int(first.number_input("Context, tokens", 2, 1 << 20, 512)),
        "ars": second.text_input(
            "New tokens of each graph", placeholder="128, 1", help="The largest reads the prompt, 1 writes the answer"
        ),
    }


def _options() -> dict[str, Any]:
    first, second = st.columns(2)
    return {
        "options": first.text_area("Builder", placeholder="attention=sha\nparts=2", help="One a line: name=value"),
        "target_options": second.text_area(
            "Tool-chain", placeholder="key=value", help="One a line; with several targets: target.key=value"
        ),
        "priority": int(first.number_input("Priority", -100, 100, 0, help="Larger runs first")),
        "timeout_s": second.number_input("Hours at most (0: any time)", 0.0, 8760.0, 0.0, 1.0) * 3600 or None,
    }


def _parsed(asked: dict[str, Any]) -> dict[str, Any]:
    parsed = {**asked, "ars": numbers(asked["ars"])}
    for name in ("options", "target_options"):
        parsed[name] = pairs(asked[name], name)
    if texts := asked.get("recipe_texts"):
        parsed["recipe_texts"] = {name: _text(name, data) for name, data in texts.items()}
    return parsed


def numbers(text: str) -> list[int]:
    """Whole numbers with commas between them. Raises InvalidArgumentError."""
    try:
        return [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise InvalidArgumentError(f"{text!r} is no list of whole numbers", hint="for example 128, 1") from None


def pairs(text: str, param: str) -> dict[str, str]:
    """The options of lines such as ``attention=sha``; a name alone is a flag. Raises InvalidArgumentError."""
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, sign, value = (part.strip() for part in line.removeprefix("--").partition("="))
        if not name or name in found:
            what = "is given twice" if name else "has no name"
            raise InvalidArgumentError(f"the option {line!r} {what}", hint="one a line: name=value", param=param)
        found[name] = value if sign else "true"
    return found


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"{name} is no text in UTF-8", param="recipe_texts") from None
