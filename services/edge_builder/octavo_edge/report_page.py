"""The build's document as one HTML page that needs nothing else: no script, no font, no address. Measures nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1c1c1c }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd }
table { border-collapse: collapse; margin: .6rem 0; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top } th { font-weight: 600; color: #555 }
td.number { text-align: right }
.bad { color: #b3261e; font-weight: 600 } .good { color: #1b6e3c } .quiet { color: #777 }
.bar { display: inline-block; height: .7rem; background: #4a76b8; vertical-align: middle }
pre { background: #f6f6f6; padding: .6rem; overflow-x: auto; font-size: 13px }
@media (prefers-color-scheme: dark) {
body { background: #16181b; color: #e4e4e4 } h2 { border-color: #444 } pre { background: #22252a }
th { color: #aaa } .bad { color: #ff8a80 } .good { color: #7fd39a } }
"""
_MAX_ROWS = 200


def page(document: Mapping[str, Any]) -> str:
    """The page of a document that ``build_to_json`` made."""
    names = ", ".join(target["name"] for target in document["targets"])
    parts = [
        f"<h1>{escape(document['model'])} for {escape(names)}</h1>",
        *_outcomes(document),
        f'<p class="quiet">{document["seconds"]:.1f} s; source {document["source_digest"][:16]}</p>',
        _overview(document["stages"]),
        *(_stage(stage) for stage in document["stages"]),
        f"<h2>Settings</h2><pre>{escape(json.dumps(document['settings'], indent=1))}</pre>",
    ]
    title = escape(f"{document['model']} for {names}")
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


def _overview(stages: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            _title(stage),
            f"{stage['seconds']:.1f}",
            f"{stage['size_bytes'] / 1e6:.1f}",
            f"{stage['peak_rss_bytes'] / 1e6:.0f}",
            "from before" if stage["cached"] else "now",
            stage["output_digest"][:16],
        )
        for stage in stages
    ]
    return _table(("stage", "seconds", "size MB", "peak memory MB", "made", "artifact"), rows)


def _stage(stage: Mapping[str, Any]) -> str:
    outcome = stage["outcome"]
    parts = [f"<h2>{escape(_title(stage))}</h2>"]
    if stage["gates"]:
        rows = [
            (gate["limit"], "not measured" if gate["value"] is None else _shown(gate["value"]), _verdict(gate))
            for gate in stage["gates"]
        ]
        parts.append(_table(("gate", "measured", ""), rows))
    parts += [f'<p class="bad">{escape(warning)}</p>' for warning in outcome["warnings"]]
    if outcome["metrics"]:
        parts.append(_table(("metric", "value"), [(k, _shown(v)) for k, v in sorted(outcome["metrics"].items())]))
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
        value = float(loss["sqnr_db"])
        width = min(max(value, 0.0), 120.0)  # also of an infinite ratio
        rows.append(
            f'<tr><td>{escape(loss["tensor"])}</td><td class="number">{value:.1f} dB</td>'
            f'<td><span class="bar" style="width:{width * 2:.0f}px"></span></td></tr>'
        )
    return f"<table><tr><th>lost most</th><th></th><th></th></tr>{''.join(rows)}</table>"


def _details(details: Mapping[str, Any]) -> str:
    """Plain values in one table, then a table for every list of rows and every mapping."""
    plain = [(name, _shown(value)) for name, value in details.items() if not isinstance(value, list | Mapping)]
    parts = [_table(("detail", ""), plain)] if plain else []
    for name, value in details.items():
        if isinstance(value, list | Mapping):
            parts.append(f"<h3>{escape(name)}</h3>{_nested(value)}")
    return "".join(parts)


def _nested(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(row, Mapping) for row in value):
        columns = list(dict.fromkeys(key for row in value for key in row))
        return _table(columns, [[_shown(row.get(column)) for column in columns] for row in value])
    if isinstance(value, Mapping) and not any(isinstance(item, list | Mapping) for item in value.values()):
        return _table(("name", "value"), [(key, _shown(item)) for key, item in value.items()])
    if isinstance(value, Mapping) and all(isinstance(row, Mapping) for row in value.values()):
        return _nested([{"name": key, **row} for key, row in value.items()])
    return f"<pre>{escape(json.dumps(value, indent=1))}</pre>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows[:_MAX_ROWS])
    more = f'<p class="quiet">{len(rows) - _MAX_ROWS} more in report.json</p>' if len(rows) > _MAX_ROWS else ""
    return f"<table><tr>{head}</tr>{body}</table>{more}"


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:.5g}" if isinstance(value, float) else str(value)
