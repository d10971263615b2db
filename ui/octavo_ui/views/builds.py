"""The Builds page: models built for devices. What runs and what has ended; a new one; `?build=ID` opens one."""

from __future__ import annotations

import streamlit as st

from octavo import Build, BuildProgress
from octavo_ui import api
from octavo_ui.figures import clock
from octavo_ui.views import build_detail, build_order

PAGE_SIZE = 100
REFRESH = "5s"
NO_BUILDER = (
    "No edge builder runs on this platform, so nothing can be built. `octavo up --edge-builders 1` starts one with the "
    "platform; it needs the extra `octavo[edge]` (`pip install 'octavo[edge]'`)."
)


def page() -> None:
    """Draw the page."""
    st.title("Builds")
    with api.failures_shown():
        build_id = st.query_params.get("build", "")
        if build_id:
            build_detail.show(build_id)
            return
        listed, new = st.tabs(["All builds", "New build"])
        with new, api.failures_shown():
            _order()
        with listed:
            _list()


def _order() -> None:
    targets = api.client().builds.targets()
    if not targets:
        st.info(NO_BUILDER)
        return
    build = build_order.order(targets)
    if build is not None:
        _open(build)


@st.fragment(run_every=REFRESH)
def _list() -> None:
    with api.failures_shown():
        builds = api.client().builds.list(limit=PAGE_SIZE)
        if not builds:
            st.info("No build yet." if api.client().builds.targets() else f"No build yet. {NO_BUILDER}")
            return
        chosen = st.dataframe(
            [_row(build) for build in builds],
            hide_index=True,
            on_select="rerun",
            selection_mode="single-row",
            key="builds",
        )
        rows = chosen["selection"]["rows"]
        if rows:
            _open(builds[rows[0]])


def _open(build: Build) -> None:
    st.query_params["build"] = build.id
    st.rerun()


def _row(build: Build) -> dict[str, object]:
    job = build.job
    took = (job.ended_at - job.started_at).total_seconds() if job.ended_at and job.started_at else None
    return {
        "state": build.state.value,
        "model": build.model.rpartition("/")[2],
        "targets": ", ".join(build.targets),
        "recipe": build.recipe or "YAML",
        "progress": _told(build.progress) if build.progress else "",
        "created": clock(job.created_at),
        "seconds": None if took is None else round(took, 1),
        "error": job.failure.code if job.failure else "",
        "tenant": job.tenant,
        "id": build.id,
    }


def _told(progress: BuildProgress) -> str:
    return f"{progress.title}, {progress.done} of {progress.total}"
