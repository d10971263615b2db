"""The Prompt page: ask a model and watch the answer arrive, with its figures."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import streamlit as st

import octavo
from octavo_ui import api


@dataclass(slots=True)
class Timing:
    """When tokens arrived at this page, in seconds of a monotonic clock."""

    start_s: float
    first_s: float | None = None
    last_s: float | None = None
    num_tokens: int = 0

    def note(self, num_tokens: int) -> None:
        """Count tokens that arrived now."""
        now = time.monotonic()
        self.first_s = now if self.first_s is None else self.first_s
        self.last_s = now
        self.num_tokens += num_tokens

    def figures(self) -> dict[str, str]:
        """Time to first token, time per token after it, and tokens per second over all."""
        if self.first_s is None or self.last_s is None:
            return {}
        after_first_s = self.last_s - self.first_s
        figures = {"Time to first token": f"{(self.first_s - self.start_s) * 1000:.0f} ms"}
        if self.num_tokens > 1 and after_first_s > 0:
            figures["Time per token"] = f"{after_first_s / (self.num_tokens - 1) * 1000:.1f} ms"
        figures["Tokens/s"] = f"{self.num_tokens / max(self.last_s - self.start_s, 1e-9):.1f}"
        return figures


@dataclass(slots=True)
class Answer:
    """What the page shows of the last request; survives reruns in the session."""

    prompt: str
    job_id: str = ""
    text: str = ""
    figures: dict[str, str] = field(default_factory=dict[str, str])
    ended: bool = False


def page() -> None:
    """Draw the page."""
    st.title("Prompt")
    with api.failures_shown():
        models = api.client().models()
        if not models:
            st.info("No worker serves a model yet. `octavo status` says what is starting.")
            return
        names = [model.name for model in models]
        with st.form("ask"):
            text = st.text_area("Prompt", "What is the capital of Japan?", height=120)
            columns = st.columns(5)
            model = columns[0].selectbox("Model", names, key="model")
            max_tokens = columns[1].number_input("Most tokens", 1, 100_000, 256)
            temperature = columns[2].number_input("Temperature", 0.0, 5.0, 0.0, 0.1)
            seed = columns[3].number_input("Seed (0: drawn)", 0, 2**53 - 1, 0)
            raw = columns[4].checkbox("Raw", help="Without the model's chat template")
            asked = st.form_submit_button("Generate", type="primary")
        _cancelled_answer()
        if asked:
            source = {"prompt": text} if raw else {"messages": [{"role": "user", "content": text}]}
            _ask(text, source, model=model, max_tokens=int(max_tokens), temperature=temperature, seed=int(seed) or None)
        elif (answer := st.session_state.get("answer")) is not None:
            _show(answer)


def _ask(text: str, source: Mapping[str, object], **options: object) -> None:
    answer = Answer(prompt=text)
    st.session_state["answer"] = answer
    timing = Timing(start_s=time.monotonic())
    # Pressing a button ends this script run; closing the stream then cancels the job.
    with api.client().generate(**source, **options) as stream:  # pyright: ignore[reportArgumentType] - forwarded as built above
        answer.job_id = stream.job_id
        st.button("Cancel", key="cancel", icon=":material/stop:")
        st.write_stream(_pieces(stream, answer, timing))
    answer.ended = True
    _figures(answer)


def _pieces(stream: octavo.TokenStream, answer: Answer, timing: Timing) -> Iterator[str]:
    for chunk in stream:
        timing.note(len(chunk.token_ids))
        answer.text += chunk.text
        answer.figures = timing.figures()
        yield chunk.text


def _cancelled_answer() -> None:
    answer: Answer | None = st.session_state.get("answer")
    if answer is not None and not answer.ended and answer.job_id and st.session_state.get("cancel"):
        api.client().jobs.cancel(answer.job_id)
        answer.ended = True
        st.warning("Cancelled.")


def _show(answer: Answer) -> None:
    st.markdown(answer.text)
    _figures(answer)


def _figures(answer: Answer) -> None:
    for column, (name, value) in zip(st.columns(max(len(answer.figures), 1)), answer.figures.items(), strict=False):
        column.metric(name, value)
    st.caption(f"Job [{answer.job_id}](/jobs?job={answer.job_id})")
