"""octavo doctor: looks at everything that the platform needs, and says what is wrong and what to do."""

from __future__ import annotations

import click

from octavo_cli.context import Context
from octavo_cli.diagnosis import Finding, Level, diagnose
from octavo_cli.output import err, show_json, show_table

_MARKS = {Level.OK: "ok", Level.NOTE: "-", Level.WARNING: "warning", Level.ERROR: "ERROR"}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def doctor(context: Context, as_json: bool) -> int:
    """Look for what is wrong. Exit code 0 when nothing is."""
    with err.status("looking"):
        findings = diagnose(context)
    if as_json:
        show_json(findings)
    else:
        rows = [(_MARKS[f.level], f.what, f.found, f.hint) for f in findings]
        show_table(("", "what", "found", "what to do"), rows, empty="")
    return 1 if any(_is_error(finding) for finding in findings) else 0


def _is_error(finding: Finding) -> bool:
    return finding.level is Level.ERROR
