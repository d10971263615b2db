"""A build that has ended: its outcome by target, its stages and gates, what is left of the signal, its files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import streamlit as st

from octavo import Build, BuildGate
from octavo_ui import api, build_charts, build_reading
from octavo_ui.build_report import (
    REPORT,
    REPORT_PAGE,
    Report,
    StageEntry,
    cache_losses,
    weight_losses,
)
from octavo_ui.figures import duration, size

# Files go through this process's memory.
MOST_BYTES = 512 << 20


def show(build: Build) -> None:
    """Draw what it has brought, or why it has failed."""
    file = build_reading.file_of(build, REPORT)
    report, why = build_reading.report(build, lambda: _document(build.id, file.sha256 if file else ""))
    if build.job.failure is not None:
        failure = build.job.failure
        st.error(f"**{failure.code}**: {failure.message}" + (f"\n\n{failure.hint}" if failure.hint else ""))
    _figures(build, report)
    for target in report.targets:
        (st.error if target.failed else st.success)(f"**{target.name}**: {target.outcome}")
    for entry in report.stages:
        _at_fault(entry)
    warnings(report.stages)
    if why:
        st.caption(f"Without the tables of its report: {why}")
    if report.stages:
        st.subheader("Stages")
        stages(report.stages)
        _gates(report.stages)
        _losses(report.stages)
    _files(build)


@st.cache_data(max_entries=32, show_spinner=False)
def _document(build_id: str, sha256: str) -> dict[str, Any]:
    """The report; its digest is its place in the cache."""
    return build_reading.document(api.client(), build_id)


def _figures(build: Build, report: Report) -> None:
    result = build.result
    if result is None:
        st.info(f"It is {build.state.value}, and has brought nothing.")
        return
    made = [entry.stage for entry in report.stages]
    figures = {
        "State": build.state.value,
        "Took": duration(result.duration_s),
        "Files": size(sum(file.size_bytes for file in result.files)) if result.files else "none",
        "Most memory": size(max((stage.peak_memory_bytes for stage in made), default=0)),
    }
    for column, (name, value) in zip(st.columns(len(figures)), figures.items(), strict=True):
        column.metric(name, value)


def _at_fault(entry: StageEntry) -> None:
    if entry.at_fault:
        st.markdown(f"**What lost most in {entry.title}**")
        st.table([{"tensor": f"`{x.tensor}`", "SQNR": build_charts.told_db(x.sqnr_db)} for x in entry.at_fault[:10]])
    if entry.unsupported_ops:
        st.error(f"{entry.title} does not take: {', '.join(entry.unsupported_ops)}")


def warnings(entries: Sequence[StageEntry]) -> None:
    """What stages warn of, together."""
    told = [f"- {entry.title}: {warning}" for entry in entries for warning in entry.stage.warnings]
    if told:
        st.warning("\n".join(told))


def stages(entries: Sequence[StageEntry]) -> None:
    """Time, size and memory of stages."""
    st.dataframe(
        [
            {
                "stage": entry.title,
                "seconds": round(entry.stage.duration_s, 1),
                "size": size(entry.stage.size_bytes),
                "peak memory": size(entry.stage.peak_memory_bytes),
                "made": "before" if entry.stage.cached else "now",
            }
            for entry in entries
        ],
        hide_index=True,
        column_config={
            "seconds": st.column_config.ProgressColumn(
                format="%.1f s",
                color="blue",
                min_value=0,
                max_value=max(0.1, *(entry.stage.duration_s for entry in entries)),
            )
        },
    )


def _gates(entries: Sequence[StageEntry]) -> None:
    rows = [
        {"stage": entry.title, "gate": f"`{gate.limit}`", "measured": _measured(gate), "": _verdict(gate)}
        for entry in entries
        for gate in entry.stage.gates
    ]
    if rows:
        st.subheader("Gates")
        st.table(rows)


def _measured(gate: BuildGate) -> str:
    if gate.value is None:
        return "not measured"
    return "exact" if gate.value == math.inf else f"{gate.value:.4g}"


def _verdict(gate: BuildGate) -> str:
    if gate.passes:
        return ":green[holds]"
    return ":orange[does not hold, a warning]" if gate.advisory else ":red[fails]"


def _losses(entries: Sequence[StageEntry]) -> None:
    """What is left of the signal, by stage and by layer."""
    st.subheader("Signal to noise")
    if any("sqnr_db" in name for entry in entries for name in entry.stage.metrics):
        st.altair_chart(build_charts.stage_sqnr(entries))
        st.caption(
            "A bar is the least that a stage has measured, strokes are its other figures. Exact: no value differs."
        )
    for entry in entries:
        cache, weights = cache_losses(entry), weight_losses(entry)
        rows = entry.details.get("sensitivity") or ()
        if not (weights or rows):
            continue
        left, right = st.columns(2)
        left.markdown(f"**Keys and values after {entry.title}**")
        left.altair_chart(build_charts.cache_by_layer(cache, entry.stage.metrics.get("sqnr_db")))
        if weights:
            right.markdown(f"**Weights in {entry.title}**")
            right.altair_chart(build_charts.weights_by_layer(weights))
        if rows:
            st.markdown("**What rounding one alone costs**")
            st.altair_chart(build_charts.sensitivity(rows))


def _files(build: Build) -> None:
    files = build.result.files if build.result is not None else ()
    st.subheader("Files")
    if not files:
        st.info("It has no files, or they were kept as long as files are kept.")
        return
    columns = st.columns(4)
    for column, name, mime in ((columns[0], REPORT_PAGE, "text/html"), (columns[1], REPORT, "application/json")):
        if build_reading.file_of(build, name):
            _download(column, build, name, [name], name, mime)
    rows = [{"name": file.name, "size": size(file.size_bytes), "sha256": file.sha256} for file in files]
    chosen = st.dataframe(rows, hide_index=True, on_select="rerun", selection_mode="multi-row", key=f"files {build.id}")
    picked = [files[row] for row in chosen["selection"]["rows"]] or list(files)
    num_bytes = sum(file.size_bytes for file in picked)
    label = f"All files, {size(num_bytes)}" if len(picked) == len(files) else f"{len(picked)} chosen, {size(num_bytes)}"
    names = [file.name for file in picked]
    one = names[0].rpartition("/")[2] if len(names) == 1 else ""
    if num_bytes > MOST_BYTES:
        st.caption(f"{label}: too much for a page. `octavo builds download {build.id} --out DIR` takes it.")
        return
    _download(columns[2], build, label, names, one or f"{build.id}.zip", None if one else "application/zip")


def _download(place: Any, build: Build, label: str, names: list[str], file_name: str, mime: str | None) -> None:
    """A button that fetches files when it is pressed, and not before."""
    client, build_id = api.client(), build.id
    place.download_button(
        label,
        lambda: build_reading.fetched(client, build_id, names),
        file_name=file_name,
        mime=mime,
        icon=":material/download:",
        on_click="ignore",
    )
