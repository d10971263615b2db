"""`python -m octavo_worker`: one worker process."""

from __future__ import annotations

import os
import sys

from octavo_common.starting import start
from octavo_worker.app import run
from octavo_worker.settings import WorkerSettings


def main() -> int:
    """Run the service; returns its exit code."""
    return start("octavo-worker", WorkerSettings, run, os.environ)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Everything was closed in order. The interpreter's own ending would take a model apart for seconds, and wait for an
    # engine that is stuck.
    os._exit(code)
