"""What is promised of the findings, and the page that tells them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from benchmarks.aimet.ours import Loss, ppl_ratio_error
from benchmarks.aimet.parts import CONFIG, Findings, Origin, Row
from benchmarks.result import Check

TOY, WHOLE, FIRST = "random, 2 layers", "the demo model", "its first 4 layers"
KL_RATIO, PPL_RATIO, TOY_DB, TIME_RATIO = 1.05, 1.01, -0.5, 1 / 3
# Of AIMET's graph of our encodings with our own graph. On random weights a number; on real ones two faithful executors
# differ by as much as quantisation itself, so there it is what they lose that has to be alike.
READ_DB, READ_KL_RATIO = 40.0, 0.05


def checks(found: Findings) -> Iterable[Check]:
    """Each promise with what came out."""
    for row in found.rows:
        where = f"{row.method} on {row.graph}"
        if row.graph == TOY:
            yield Check(
                name=f"{where}: SQNR, ours less AIMET's [dB]",
                value=row.ours.sqnr_db - row.aimet.sqnr_db,
                at_least=TOY_DB,
            )
        kl_ratio = row.ours.mean_kl_nats / row.aimet.mean_kl_nats
        yield Check(name=f"{where}: KL, ours to AIMET's", value=kl_ratio, at_most=KL_RATIO)
        ppl_ratio = row.ours.ppl / row.aimet.ppl
        yield Check(name=f"{where}: perplexity, ours to AIMET's", value=ppl_ratio, at_most=PPL_RATIO)
        yield from _readings(row, where)
    if found.ours_search:
        yield Check(name="SeqMSE's time, ours to AIMET's", value=_time_ratio(found), at_most=TIME_RATIO)


def _readings(row: Row, where: str) -> Iterable[Check]:
    for reading in row.readings:
        name = f"{where}: encodings {reading.schema} read by AIMET"
        if row.graph == TOY:
            yield Check(name=f"{name}, agreement [dB]", value=reading.agreement_db, at_least=READ_DB)
        else:
            kl, ppl = reading.kl_ratio, reading.ppl_ratio
            yield Check(name=f"{name}, distance of KL's ratio from 1", value=abs(kl - 1), at_most=READ_KL_RATIO)
            yield Check(name=f"{name}, distance of perplexity's from 1", value=abs(ppl - 1), at_most=PPL_RATIO - 1)


def _time_ratio(found: Findings) -> float:
    return sum(s.clock_s for s in found.ours_search) / sum(s.clock_s for s in found.aimet_search)


def page(found: Findings, settings: Mapping[str, object], promised: Sequence[Check]) -> str:
    """docs/aimet.md."""
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    held = sum(check.holds for check in promised)
    told = ", ".join(f"{value} {name}" for name, value in settings.items())
    lines = [
        _HEAD,
        f"{_origin(found.origins)}: {versions}.",
        f"{told[0].upper()}{told[1:]}. {held} of {len(promised)} promises hold.",
        _SAME,
        *(_row(row) for row in found.rows),
    ]
    lines += [_READING, *(line for row in found.rows for line in _reading_rows(row))]
    lines.append(_LPBQ)
    if found.ours_search:
        lines.append(_search(found))
    return "\n".join([*lines, _AGAIN])


_HEAD = """# AIMET as the referee

Qualcomm's AIMET quantises the same float ONNX graphs as the edge builder with the same calibration windows, and both
results are run in ONNX Runtime on the same held-out text. AIMET also reads our encodings files.
"""
_SAME = f"""
## The same recipe, by both

Activations of 16 bits as AIMET's configuration `{CONFIG}` has them, the residual sums and the table too; the inside of
RMSNorm in floating point; MinMax ranges; weights symmetric, a scale for each channel (LPBQ: blocks of 64); at 4 bits
the LM head has 8. KL in nats against the float graph. Ours may be at most {KL_RATIO} times AIMET's KL and {PPL_RATIO}
times its perplexity, on random weights also at most {-TOY_DB} dB below it. Behind the ratio of perplexities stands its
standard error, by the differences of the two in each window. The first 4 layers by themselves, with the head behind
them, predict next to nothing: which of two equally good scales a channel has, and which windows the search sees, moves
their perplexity by percents, up or down, with either of the two. There both search several times, each time with other
windows, and the error is that of the mean. SeqMSE is also done in the first 4 of all layers, where the other weights
have 8 bits.

| graph | method | KL: ours | AIMET | ratio | perplexity: ours | AIMET | ratio | dB: ours | AIMET | holds |
|---|---|---|---|---|---|---|---|---|---|---|"""
_READING = """
## AIMET reads our encodings

The graph that AIMET makes of the float graph and our encodings file, against our own quantised graph: dB of the logits
between the two, and what both lose against float as a ratio.

| graph | method | schema | read by | dB | KL, to ours | perplexity, to ours |
|---|---|---|---|---|---|---|"""
_LPBQ = """
LPBQ of schema 1.0.0 goes through AIMET's simulator: its converter does not take it, from its own files either."""
_TIME = """
## Seconds of SeqMSE

Of the search alone, from a loaded graph and loaded windows to the scales of all weights of the layers: AIMET's
`apply_seq_mse`, and our passage through the graph with nothing else to quantise. On the demo model's first 4 layers,
with the same candidates and windows, in turns, each in a process of its own with as many threads as processors.

| round | clock: ours | AIMET | ratio | processors: ours | AIMET | ratio |
|---|---|---|---|---|---|---|"""
_AGAIN = """
## Again

`make aimet-parity` installs AIMET under `build/aimet`, in an environment of its own, makes the graphs and runs all of
this. `python -m benchmarks.aimet --cut` does the random model alone. What a build's own presets lose, for which AIMET
has no equal, is in [edge-accuracy.md](edge-accuracy.md); [edge.md](edge.md) tells of the builder.
"""


def _origin(origins: Sequence[Origin]) -> str:
    runs = dict.fromkeys((origin.began, origin.commit) for origin in origins)
    if len(runs) == 1:
        ((began, commit),) = runs
        return f"Written by one run of `make aimet-parity`, {began} at commit {commit}"
    parts = (f"{origin.part} of {origin.began} at {origin.commit}" for origin in origins)
    return f"Written by several runs of `make aimet-parity`, {', '.join(parts)}"


def _search(found: Findings) -> str:
    lines = [_TIME]
    for number, (ours, theirs) in enumerate(zip(found.ours_search, found.aimet_search, strict=True), start=1):
        lines.append(
            f"| {number} | {ours.clock_s:.1f} | {theirs.clock_s:.1f} | {ours.clock_s / theirs.clock_s:.3f} "
            f"| {ours.processor_s:.1f} | {theirs.processor_s:.1f} | {ours.processor_s / theirs.processor_s:.3f} |"
        )
    ratio = _time_ratio(found)
    holds = "yes" if ratio <= TIME_RATIO else "**no**"
    return "\n".join([*lines, f"\nBy the clock, all rounds: {ratio:.3f}; promised is at most 1/3: {holds}."])


def _row(row: Row) -> str:
    own = [check for check in checks(Findings(rows=[row])) if "read by AIMET" not in check.name]
    holds = "yes" if all(check.holds for check in own) else "**no**"
    ours, theirs = row.ours, row.aimet
    error = ppl_ratio_error(ours, theirs) * ours.ppl / theirs.ppl
    return (
        f"| {row.graph} | {row.method} | {_n(ours.mean_kl_nats)} | {_n(theirs.mean_kl_nats)} "
        f"| {ours.mean_kl_nats / theirs.mean_kl_nats:.3f} | {_ppl(ours)} | {_ppl(theirs)} "
        f"| {ours.ppl / theirs.ppl:.4f} ± {error:.4f} | {ours.sqnr_db:.2f} | {theirs.sqnr_db:.2f} | {holds} |"
    )


def _reading_rows(row: Row) -> Iterable[str]:
    for reading in row.readings:
        decibels = "equal" if math.isinf(reading.agreement_db) else f"{reading.agreement_db:.1f}"
        yield (
            f"| {row.graph} | {row.method} | {reading.schema} | `{reading.by}` | {decibels} | {reading.kl_ratio:.4f} "
            f"| {reading.ppl_ratio:.4f} |"
        )


def _n(value: float) -> str:
    return f"{value:.4f}"


def _ppl(loss: Loss) -> str:
    return f"{loss.ppl:.3f}" if loss.ppl < 1e5 else f"{loss.ppl:.4g}"
