"""The build's document as one HTML page that needs nothing else: no script, no font, no address. Measures nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from octavo_edge.public import all_without_paths

_STYLE = """
:root { --ink: #1c1c1c; --quiet: #6b6b6b; --line: #e2e2e2; --bar: #4a76b8; --box: #f6f7f9; --bad: #b3261e;
--good: #1b6e3c }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e4e4; --quiet: #a0a0a0; --line: #3a3d42; --bar: #6f9be0;
--box: #22252a; --bad: #ff8a80; --good: #7fd39a } body { background: #16181b } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 66rem; padding: 0 1rem; color: var(--ink) }
h1 { font-size: 1.5rem; margin-bottom: .2rem } h3 { font-size: 1rem; margin: 1.2rem 0 .2rem }
h2 { font-size: 1.2rem; margin-top: 2.4rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; margin: .4rem 0; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .15rem 1.2rem .15rem 0; vertical-align: top; white-space: nowrap }
th { font-weight: 600; color: var(--quiet) } td.number, th.number { text-align: right }
.bad { color: var(--bad); font-weight: 600 } .good { color: var(--good) } .quiet { color: var(--quiet) }
.bar { display: inline-block; height: .7rem; background: var(--bar); vertical-align: middle; border-radius: 2px }
details { margin: .6rem 0 } summary { cursor: pointer; color: var(--quiet) }
pre { background: var(--box); padding: .6rem; overflow-x: auto; font-size: 13px }
"""
_MAX_ROWS, _FOLDED_ROWS = 400, 14
_MOST_DB = 120.0  # the longest bar
_ABBREVIATIONS = {"sqnr": "SQNR", "kl": "KL", "mb": "MB", "db": "dB"}


def report_files(document: Mapping[str, Any], *, places: Collection[Path], keep: str) -> dict[str, str]:
    """The document as JSON and as a page, for other machines too: what tool-chains say names files of this one."""
    told = {name: document[name] for name in ("targets", "outcome", "stages")}
    whole = {**document, **all_without_paths(told, places=places, keep=keep)}
    return {"report.json": json.dumps(whole, indent=1) + "\n", "report.html": page(whole)}


def page(document: Mapping[str, Any]) -> str:
    """The page of a document that ``build_to_json`` made."""
    names = ", ".join(target["name"] for target in document["targets"])
    title = escape(f"{document['model']} for {names}")
    parts = [
        f"<h1>{title}</h1>",
        *_outcomes(document),
        f'<p class="quiet">{document["seconds"]:.1f} s; source {document["source_digest"][:16]}</p>',
        _result(document["stages"]),
        "<h2>Stages</h2>",
        _overview(document["stages"]),
        *(_stage(stage) for stage in document["stages"]),
        "<h2>Settings</h2>",
        _folded("all settings", f"<pre>{escape(json.dumps(document['settings'], indent=1))}</pre>"),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _outcomes(document: Mapping[str, Any]) -> list[str]:
    """How the build ended, and each target where they are several."""
    targets = document["targets"]
    told = [("", document["outcome"], any(target["failed"] for target in targets))]
    if len(targets) > 1 and not document["outcome"].startswith("failed"):
        told = [(f"{target['name']}: ", target["outcome"], target["failed"]) for target in targets]
    return [
        f'<p>{escape(name)}<span class="{"bad" if failed else "good"}">{escape(outcome)}</span></p>'
        for name, outcome, failed in told
    ]


def _result(stages: Sequence[Mapping[str, Any]]) -> str:
    """What quantising cost and what is delivered, as far as it was measured."""
    rows: list[tuple[str, str]] = []
    for stage in stages:
        found = stage["outcome"]["metrics"]
        if {"float_ppl", "ppl"} <= found.keys():
            before, after = float(found["float_ppl"]), float(found["ppl"])
            change = f"{(after / before - 1) * 100:+.2f} %" if before else "-"
            rows.append(("perplexity before and after quantising", f"{before:.3f} and {after:.3f} ({change})"))
            for name in ("mean_kl_nats", "top1_ratio", "sqnr_db", "centred_sqnr_db"):
                if name in found:
                    rows.append((f"{_label(name)} of the logits", _measured(name, found[name])))
        if prefix := stage["outcome"]["details"].get("prefix"):
            rows += _prefix(prefix, found)
        if stage["kind"] == "Bundle" and "size_bytes" in found:
            label = f"bundle for {stage['target']}" if stage["target"] else "bundle"
            rows.append((label, _measured("size_bytes", found["size_bytes"])))
    return _table(("", "result"), rows) if rows else ""


def _prefix(prefix: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The tokens before every text, and what the float graph has with and without them."""
    rows = [("prefix", f"{prefix['text']!r} ({prefix['num_tokens']} of the context's tokens)")]
    for label, with_it, without in (
        ("largest sum of the residual", "largest_residual", "largest_residual_without_prefix"),
        ("perplexity of the float graph", "float_ppl", "float_ppl_without_prefix"),
    ):
        if {with_it, without} <= found.keys():
            rows.append(
                (f"{label} without prefix, and behind it", f"{_shown(found[without])}, {_shown(found[with_it])}")
            )
    return rows


def _overview(stages: Sequence[Mapping[str, Any]]) -> str:
    rows: list[tuple[str, ...]] = []
    for stage in stages:
        worst = stage["outcome"]["worst"]
        lost = f"{_db(worst[0]['sqnr_db'])} ({worst[0]['tensor']})" if worst else "-"
        verdicts = [_verdict(gate) for gate in stage["gates"]]
        held = "-" if not verdicts else "hold" if set(verdicts) == {"holds"} else ", ".join(sorted(set(verdicts)))
        made = "before" if stage["cached"] else "now"
        cells = (f"{stage['seconds']:.1f}", f"{stage['peak_rss_bytes'] / 1e6:.0f}", f"{stage['size_bytes'] / 1e6:.1f}")
        rows.append((_title(stage), *cells, made, held, lost, stage["output_digest"][:12]))
    return _table(("stage", "seconds", "peak memory MB", "size MB", "made", "gates", "lost most", "artifact"), rows)


def _stage(stage: Mapping[str, Any]) -> str:
    outcome = stage["outcome"]
    parts = [f"<h2>{escape(_title(stage))}</h2>"]
    parts += [f'<p class="bad">{escape(warning)}</p>' for warning in outcome["warnings"]]
    if stage["gates"]:
        rows = [
            (gate["limit"], "not measured" if gate["value"] is None else _shown(gate["value"]), _verdict(gate))
            for gate in stage["gates"]
        ]
        parts.append(_table(("gate", "measured", ""), rows))
    if outcome["metrics"]:
        rows = [(_label(name), _measured(name, value)) for name, value in sorted(outcome["metrics"].items())]
        parts.append(_table(("measured", ""), rows))
    if outcome["worst"]:
        parts.append(_losses(outcome["worst"]))
    if outcome["unsupported_ops"]:
        parts.append(f"<p>Not supported: {escape(', '.join(outcome['unsupported_ops']))}</p>")
    parts.append(_details(outcome["details"]))
    if outcome["versions"]:
        told = ", ".join(f"{name} {version}" for name, version in sorted(outcome["versions"].items()))
        parts.append(f'<p class="quiet">{escape(told)}</p>')
    return "".join(parts)


def _title(stage: Mapping[str, Any]) -> str:
    return f"{stage['stage']} for {stage['target']}" if stage["target"] else stage["stage"]


def _verdict(gate: Mapping[str, Any]) -> str:
    if gate["passes"]:
        return "holds"
    return "does not hold, a warning" if gate["advisory"] else "fails"


def _losses(worst: Sequence[Mapping[str, Any]]) -> str:
    """A bar for every tensor: the longer, the more of its signal is left."""
    rows: list[str] = []
    for loss in worst[:_MAX_ROWS]:
        width = min(max(float(loss["sqnr_db"]), 0.0), _MOST_DB)  # also of an infinite ratio
        rows.append(
            f'<tr><td>{escape(loss["tensor"])}</td><td class="number">{escape(_db(loss["sqnr_db"]))}</td>'
            f'<td><span class="bar" style="width:{width * 2:.0f}px"></span></td></tr>'
        )
    table = f'<table><tr><th>lost most</th><th class="number">SQNR</th><th></th></tr>{"".join(rows)}</table>'
    return table if len(rows) <= _FOLDED_ROWS else _folded(f"lost most: {len(rows)} tensors", table)


def _details(details: Mapping[str, Any]) -> str:
    """Plain values in one table, then a table for every list of rows and every mapping."""
    plain = [(_words(name), _shown(value)) for name, value in details.items() if not isinstance(value, list | Mapping)]
    parts = [_table(("detail", ""), plain)] if plain else []
    for name, value in details.items():
        if isinstance(value, list | Mapping) and value:
            content, title = _nested(value), _words(name)
            few = len(value) <= _FOLDED_ROWS
            parts.append(f"<h3>{escape(title)}</h3>{content}" if few else _folded(f"{title}: {len(value)}", content))
    return "".join(parts)


def _nested(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(row, Mapping) for row in value):
        columns = list(dict.fromkeys(key for row in value for key in row))
        return _table([_words(c) for c in columns], [[_shown(row.get(column)) for column in columns] for row in value])
    if isinstance(value, Mapping) and not any(isinstance(item, list | Mapping) for item in value.values()):
        return _table(("name", "value"), [(key, _shown(item)) for key, item in value.items()])
    if isinstance(value, Mapping) and all(isinstance(row, Mapping) for row in value.values()):
        # The names across: there are fewer of them than of what each has.
        keys = sorted({key for row in value.values() for key in row})
        rows = [[key, *(_shown(row.get(key)) for row in value.values())] for key in keys]
        return _table(["", *value], rows)
    return f"<pre>{escape(json.dumps(value, indent=1))}</pre>"


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows[:_MAX_ROWS])
    more = f'<p class="quiet">{len(rows) - _MAX_ROWS} more in report.json</p>' if len(rows) > _MAX_ROWS else ""
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>{more}'


def _cell(text: str) -> str:
    kind = {"fails": ' class="bad"', "holds": ' class="good"', "hold": ' class="good"'}.get(text, "")
    return f"<td{kind}>{escape(text)}</td>"


def _label(metric: str) -> str:
    """A metric's name without the unit that its value shows."""
    for suffix in ("_bytes", "_db", "_ratio", "_nats"):
        if metric.endswith(suffix):
            metric = metric.removesuffix(suffix)
    return _words(metric)


def _words(name: str) -> str:
    return " ".join(_ABBREVIATIONS.get(word, word) for word in name.removeprefix("num_").split("_"))


def _measured(name: str, value: Any) -> str:
    number = float(value)
    if name.endswith("_bytes") and math.isfinite(number):
        return f"{number / 1e6:,.1f} MB"
    if name.endswith("_db"):
        return _db(number)
    return f"{_shown(value)} nats" if name.endswith("_nats") else _shown(value)


def _db(value: Any) -> str:
    number = float(value)
    return "equal in every bit" if number == math.inf else f"{number:.1f} dB"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
