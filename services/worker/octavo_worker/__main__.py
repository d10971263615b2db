"""`python -m octavo_worker`: one worker process."""

from __future__ import annotations

import os
import sys

from octavo_common.starting import start
from octavo_worker.app import run
from octavo_worker.settings import WorkerSettings

# The engine's thread computes in Python too: the event loop shall not wait 5 ms, the default, before a token can leave.
SWITCH_INTERVAL_S = 0.0005


def main() -> int:
    """Run the service; returns its exit code."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    return start("octavo-worker", WorkerSettings, run, os.environ)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Everything was closed in order. The interpreter's own ending would take a model apart for seconds, and wait for an
    # engine that is stuck.
    os._exit(code)
