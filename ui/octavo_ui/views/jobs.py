"""The Jobs page: find a job, see what happened to it, cancel it or run it again."""

from __future__ import annotations

from datetime import datetime

import streamlit as st

from octavo import Job, JobState, Usage
from octavo_ui import api, charts
from octavo_ui.figures import clock

PAGE_SIZE = 100
EDGE_BUILD = "edge_build"


def page() -> None:
    """Draw the page; `?job=ID` opens one job."""
    st.title("Jobs")
    with api.failures_shown():
        job_id = st.query_params.get("job", "")
        if job_id:
            _detail(job_id)
        else:
            _list()


def _list() -> None:
    columns = st.columns([3, 2, 1])
    states = columns[0].multiselect("State", [state.value for state in JobState])
    model = columns[1].text_input("Model")
    columns[2].button("Refresh", icon=":material/refresh:")
    jobs = list(api.client().jobs.list(states=states, model=model, limit=PAGE_SIZE))
    if not jobs:
        st.info("No job matches." if states or model else "No job yet. The Prompt page makes one.")
        return
    chosen = st.dataframe(
        [_row(job) for job in jobs],
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        key="jobs",
        column_config={"build": st.column_config.LinkColumn(display_text="open")},
    )
    rows = chosen["selection"]["rows"]
    if rows:
        st.query_params["job"] = jobs[rows[0]].id
        st.rerun()


def _row(job: Job) -> dict[str, object]:
    return {
        "id": job.id,
        "state": job.state.value,
        "tenant": job.tenant,
        "model": job.model,
        "prompt tokens": job.num_prompt_tokens,
        "created": clock(job.created_at),
        "seconds": _seconds(job.created_at, job.ended_at),
        "losses": job.num_losses,
        # A build has a page of its own, which knows of stages and files.
        "build": _build_page(job) if job.kind == EDGE_BUILD else None,
    }


def _build_page(job: Job) -> str:
    return f"/builds?build={job.id}"


def _seconds(start: datetime | None, end: datetime | None) -> float | None:
    return round((end - start).total_seconds(), 3) if start and end else None


def _detail(job_id: str) -> None:
    if st.button("All jobs", icon=":material/arrow_back:"):
        del st.query_params["job"]
        st.rerun()
    job = api.client().jobs.get(job_id)
    _actions(job)
    if job.kind == EDGE_BUILD:
        st.markdown(f"It is a build for devices: [its stages, report and files]({_build_page(job)})")
    live = st.fragment(_state, run_every=None if job.state.ended else "1s")
    live(job_id)


def _actions(job: Job) -> None:
    columns = st.columns([6, 1, 1])
    columns[0].subheader(job.id)
    if columns[1].button("Cancel", disabled=job.state.ended, icon=":material/stop:"):
        api.client().jobs.cancel(job.id)
        st.rerun()
    if columns[2].button("Retry", disabled=not job.state.ended, icon=":material/replay:"):
        st.query_params["job"] = api.client().jobs.retry(job.id).id
        st.rerun()


def _state(job_id: str) -> None:
    with api.failures_shown():
        job = api.client().jobs.get(job_id)
        facts = {
            "State": job.state.value,
            "Model": job.model,
            "Tenant": job.tenant,
            "Worker": job.worker_id[:8] or "none",
            "Losses": str(job.num_losses),
        }
        for column, (name, value) in zip(st.columns(len(facts)), facts.items(), strict=True):
            column.metric(name, value)
        events = api.client().jobs.events(job_id)
        st.altair_chart(charts.timeline(events))
        st.dataframe(
            [
                {"time": clock(e.time), "event": e.event, "fence": e.fence, "process": e.process_id[:8], **e.details}
                for e in events
            ],
            hide_index=True,
        )
        if job.failure is not None:
            st.error(f"**{job.failure.code}**: {job.failure.message}\n\n{job.failure.hint}")
        if job.result is not None:
            st.markdown(job.result.text)
            st.caption(f"{_used(job.result.usage)}; {job.result.finish_reason.value}; numerics {job.numerics_id}")


def _used(usage: Usage) -> str:
    """Tokens and times; a time that nobody knows, as after some losses, is left out."""
    counts = f"{usage.prompt_tokens} + {usage.completion_tokens} tokens, {usage.cached_tokens} from the cache"
    times = [
        f"queued {usage.queue_s * 1000:.0f} ms" if usage.queue_s is not None else "",
        f"first token after {usage.time_to_first_token_s * 1000:.0f} ms"
        if usage.time_to_first_token_s is not None
        else "",
        f"all after {usage.total_s:.2f} s" if usage.total_s is not None else "",
    ]
    return "; ".join(part for part in (counts, ", ".join(filter(None, times))) if part)
