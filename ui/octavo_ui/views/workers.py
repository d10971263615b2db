"""The Workers page: load and block usage of every worker, live."""

from __future__ import annotations

import streamlit as st

from octavo import Worker
from octavo_ui import api, charts


def page() -> None:
    """Draw the page."""
    st.title("Workers")
    _live()


@st.fragment(run_every="2s")
def _live() -> None:
    with api.failures_shown():
        workers = api.client().workers()
        if not workers:
            st.info("No worker is alive. `octavo status` says why.")
            return
        st.dataframe([_row(worker) for worker in workers], hide_index=True)
        for worker in workers:
            _worker(worker)


def _row(worker: Worker) -> dict[str, object]:
    return {
        "id": worker.id[:8],
        "address": worker.address,
        "pid": worker.pid,
        "model": worker.model,
        "running": worker.num_running,
        "waiting": worker.num_waiting,
        "blocks used": worker.num_total_blocks - worker.num_free_blocks,
        "blocks": worker.num_total_blocks,
        "heartbeat": f"{worker.heartbeat_age_s:.1f} s ago",
        "state": "draining" if worker.draining else "alive",
    }


def _worker(worker: Worker) -> None:
    st.subheader(f"{worker.id[:8]} at {worker.address}")
    with api.failures_shown():
        records = api.client().worker_records(worker.id)
        if not records:
            st.caption("No step yet.")
            return
        left, right = st.columns(2)
        left.altair_chart(charts.block_usage(records))
        right.altair_chart(charts.load(records))
        st.caption(f"Precision and kernels: {worker.numerics_id}. Blocks of {worker.block_size} tokens.")
