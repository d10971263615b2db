"""How a service ends that cannot start: one line on stderr, and a code that says whether another try may help."""

from __future__ import annotations

import sys

from octavo_common.errors import OctavoError, Status

# EX_CONFIG of sysexits.h: started again with the same settings and files, the process would end the same way.
MISCONFIGURED = 78
FAILED = 1
_PERMANENT = (Status.INVALID_ARGUMENT, Status.FAILED_PRECONDITION)


def explain(service: str, error: OctavoError) -> int:
    """Say in one line why the service ends; returns its exit code."""
    text = f"{error.message} - {error.hint}" if error.hint else error.message
    sys.stderr.write(f"{service}: {' '.join(text.split())}\n")
    return MISCONFIGURED if error.status in _PERMANENT else FAILED
