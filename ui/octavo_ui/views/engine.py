"""The Engine page: one worker's pool of blocks, block by block, and what its last steps were made of, live."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from octavo import Pool, PoolSequence, StepRecord
from octavo_ui import api, engine_charts

REFRESH = "2s"


def page() -> None:
    """Draw the page."""
    st.title("Engine")
    with api.failures_shown():
        workers = {worker.id: worker for worker in api.client().workers()}
        if not workers:
            st.info("No worker is alive. `octavo status` says why.")
            return
        # With a key the choice outlives workers that come and go.
        chosen = st.selectbox(
            "Worker",
            list(workers),
            format_func=lambda id: f"{id[:8]} at {workers[id].address}, {workers[id].model}",
            key="worker",
        )
        _live(chosen)


@st.fragment(run_every=REFRESH)
def _live(worker_id: str) -> None:
    with api.failures_shown():
        pool, records = api.client().worker_pool(worker_id), api.client().worker_records(worker_id)
        _figures(pool, records)
        st.subheader("Blocks")
        st.altair_chart(engine_charts.pool_map(pool))
        each = f"{pool.blocks_per_cell} blocks" if pool.blocks_per_cell > 1 else "a block"
        st.caption(
            f"A square is {each} of {pool.block_size} tokens, in the colour of who holds it; a dot marks those that "
            f"several hold. After step {pool.step}."
        )
        if pool.sequences:
            st.dataframe(
                [_row(sequence) for sequence in pool.sequences],
                hide_index=True,
                column_config={"job": st.column_config.LinkColumn(display_text=r"job=(.*)")},
            )
        if pool.num_sequences_left_out:
            st.caption(f"{pool.num_sequences_left_out} more sequences are not shown.")
        if not records:
            st.caption("No step yet.")
            return
        st.subheader("Steps")
        left, middle, right = st.columns(3)
        left.altair_chart(engine_charts.composition(records))
        middle.altair_chart(engine_charts.preemptions(records))
        right.altair_chart(engine_charts.hit_rate(records))


def _figures(pool: Pool, records: Sequence[StepRecord]) -> None:
    asked = sum(record.num_prefix_asked_tokens for record in records)
    found = sum(record.num_prefix_found_tokens for record in records)
    preempted = sum(record.num_preempted for record in records)
    swapped = sum(record.num_swapped for record in records)
    slots = pool.num_used_blocks * pool.block_size
    figures = {
        "Used blocks": f"{pool.num_used_blocks}",
        "Shared": f"{pool.num_shared_blocks}",
        "Cached": f"{pool.num_cached_blocks}",
        "Free": f"{pool.num_free_blocks}",
        "Unused slots": f"{pool.num_unused_slots / slots:.1%}" if slots else "0%",
        "Prefix hits": f"{found / asked:.1%}" if asked else "none asked",
        "Preempted": f"{preempted} ({swapped} swapped)",
    }
    if pool.num_host_blocks:
        figures["In host memory"] = f"{pool.num_host_blocks - pool.num_free_host_blocks} of {pool.num_host_blocks}"
    places = st.columns(4)
    for number, (name, value) in enumerate(figures.items()):
        places[number % 4].metric(name, value)


def _row(sequence: PoolSequence) -> dict[str, object]:
    return {
        "name": engine_charts.label(sequence),
        "job": f"/jobs?job={sequence.job_id}",
        "choice": sequence.choice,
        "phase": sequence.phase,
        "tokens": sequence.num_tokens,
        "of the prompt": sequence.num_prompt_tokens,
        "with KV": sequence.num_computed_tokens,
        "blocks": sequence.num_blocks,
        "shared": sequence.num_shared_blocks,
        "in host memory": sequence.num_host_blocks,
    }
