"""One build: what was asked for, and how far it is while it runs."""

from __future__ import annotations

import streamlit as st

from octavo import Build, BuildProgress, JobState
from octavo_ui import api, build_reading
from octavo_ui.build_report import StageEntry
from octavo_ui.figures import clock, duration
from octavo_ui.views import build_result

REFRESH = "1s"


def show(build_id: str) -> None:
    """Draw it. Raises OctavoError."""
    if st.button("All builds", icon=":material/arrow_back:"):
        del st.query_params["build"]
        st.rerun()
    build = api.client().builds.get(build_id)
    _actions(build)
    if build.state.ended:
        build_result.show(build)
    else:
        st.fragment(_running, run_every=REFRESH)(build_id)


def _actions(build: Build) -> None:
    columns = st.columns([6, 1, 1], vertical_alignment="center")
    # Without targets once retention has removed what was asked for.
    columns[0].subheader(" for ".join(filter(None, (build.model, ", ".join(build.targets)))))
    if columns[1].button("Cancel", disabled=build.state.ended, icon=":material/stop:"):
        api.client().builds.cancel(build.id)
        st.rerun()
    if columns[2].button("Retry", disabled=not build.state.ended, icon=":material/replay:"):
        st.query_params["build"] = api.client().jobs.retry(build.id).id
        st.rerun()
    options = {**build.options, **build.target_options}
    asked = [
        f"Recipe {build.recipe or 'of its own'}",
        f"context of {build.context_length} tokens",
        f"graphs for {' and '.join(map(str, build.ars))} new tokens",
        *(f"{name}={value}" for name, value in options.items()),
    ]
    st.caption(f"{', '.join(asked)}. Asked for by {build.job.tenant} at {clock(build.job.created_at)}; {build.id}")
    if build.recipe_yaml:
        with st.expander("Recipe"):
            st.code(build.recipe_yaml, language="yaml")


def _running(build_id: str) -> None:
    with api.failures_shown():
        seen = build_reading.glance(api.client(), build_id)
        if seen.build.state.ended:
            st.rerun()
        if seen.build.state is not JobState.RUNNING:
            _waiting(seen.build)
            return
        if seen.build.job.cancel_requested:
            st.warning("It is told to stop.")
        if seen.progress is None:
            st.progress(0.0, text="Beginning")
        else:
            _progress(seen.progress)
        if seen.stages:
            entries = [StageEntry(stage=stage) for stage in seen.stages]
            build_result.stages(entries)
            build_result.warnings(entries)


def _waiting(build: Build) -> None:
    if api.client().builds.targets():
        st.info(f"It is {build.state.value}: it begins when an edge builder is free.")
    else:
        st.warning(
            f"It is {build.state.value}, and no edge builder runs: it begins when there is one "
            "(`octavo up --edge-builders 1`)."
        )


def _progress(progress: BuildProgress) -> None:
    first, second, third = st.columns(3)
    first.metric("Stage", progress.title)
    second.metric("Stages done", progress.num_stages_done)
    third.metric("Since it began", duration(progress.elapsed_s))
    share = progress.done / progress.total if progress.total else 0.0
    what = f": {progress.what}" if progress.what else ""
    st.progress(min(max(share, 0.0), 1.0), text=f"{progress.title}, {progress.done} of {progress.total}{what}")
