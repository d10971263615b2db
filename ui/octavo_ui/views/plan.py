"""The Plan page: what a model needs of a device, how many sequences fit, and what it can give at most."""

from __future__ import annotations

from typing import Any

import streamlit as st

from octavo import ModelPlan, PlanChoices, PlanStep
from octavo_ui import api, roofline
from octavo_ui.figures import count, duration, size

OTHER = "another: by its figures"
OWN = "the model's own"


def page() -> None:
    """Draw the page; it follows every change of its inputs."""
    st.title("Plan")
    with api.failures_shown():
        asked = _inputs(api.client().plan_choices())
        _show(api.client().plan(asked.pop("model"), **asked))


def _inputs(choices: PlanChoices) -> dict[str, Any]:
    first, second = st.columns(4), st.columns(5)
    asked: dict[str, Any] = {
        "model": first[0].selectbox("Model", choices.models, key="planned_model"),
        "device": first[1].selectbox("Device", [*choices.devices, OTHER], index=_place(choices.devices, "H200")),
        "precision": first[2].selectbox("Weights", [OWN, *choices.precisions]),
        "kv_format": first[3].selectbox("Keys and values", [OWN, *choices.kv_formats]),
        "num_prompt_tokens": int(second[0].number_input("Prompt tokens", 1, 1 << 20, 1024)),
        "num_output_tokens": int(second[1].number_input("Output tokens", 1, 1 << 20, 256)),
        "batch": int(second[2].number_input("Batch", 1, 1 << 16, 1)),
        "tensor_parallel": int(second[3].number_input("Devices", 1, 1024, 1, help="That share the model")),
        "reserve": second[4].slider("Reserve", 0, 50, 10, format="%d%%", help="Memory left to others") / 100,
    }
    for name in ("precision", "kv_format"):
        asked[name] = "" if asked[name] == OWN else asked[name]
    if asked["device"] == OTHER:
        asked["device"] = "other"
        own = st.columns(3)
        asked["memory_bytes"] = own[0].number_input("Memory, GB", 0.001, 1e6, 24.0) * 1e9
        asked["bandwidth"] = own[1].number_input("Bandwidth, GB/s", 0.001, 1e6, 100.0) * 1e9
        asked["peak"] = own[2].number_input("Arithmetic, T operations/s", 0.001, 1e5, 2.0) * 1e12
    return asked


def _place(names: tuple[str, ...], name: str) -> int:
    return names.index(name) if name in names else 0


def _show(plan: ModelPlan) -> None:
    figures = {
        "Weights": size(plan.total_weight_bytes),
        "KV of a token": size(plan.kv_bytes_per_token),
        "KV of a sequence": size(plan.kv_bytes_per_sequence),
        "Sequences that fit": f"{plan.num_sequences:,}",
        "First token after": duration(plan.prefill.time_s),
        "Token after token": duration(plan.decode.time_s),
        "Tokens/s at most": count(plan.decode.tokens_per_s),
        "Fewest devices": str(plan.least_tensor_parallel or "none holds it"),
    }
    places = st.columns(4)
    for number, (name, value) in enumerate(figures.items()):
        places[number % 4].metric(name, value)
    for note in plan.notes:
        st.warning(note)
    left, right = st.columns(2)
    left.subheader("Roofline")
    left.altair_chart(roofline.roofline(plan))
    right.subheader("Ceiling by batch")
    right.altair_chart(roofline.ceilings(plan))
    st.dataframe(
        [_row("prompt", plan.prefill), *(_row("decode", step) for step in plan.decode_by_batch)], hide_index=True
    )
    bound = f"from a batch of {plan.ridge_batch} on" if plan.ridge_batch else "at no batch"
    st.caption(
        f"{plan.model}: {count(plan.num_parameters)} parameters in {plan.precision}, keys and values in "
        f"{plan.kv_format}. Figures are of one device and floors: every byte moves once, nothing else is counted. "
        f"Decoding looks at {plan.decode_context} tokens and is bound by compute {bound}. "
        f"A request takes at least {duration(plan.request_s)}."
    )


def _row(name: str, step: PlanStep) -> dict[str, object]:
    return {
        "step": name,
        "batch": step.batch,
        "operations": count(step.flops),
        "bytes": size(step.num_bytes),
        "operations/byte": round(step.intensity, 2),
        "bound": step.bound,
        "at least": duration(step.time_s),
        "tokens/s at most": round(step.tokens_per_s, 1),
    }
