"""`python -m octavo_worker`: one worker process."""

from __future__ import annotations

import asyncio
import os
import sys

from octavo_common.errors import OctavoError
from octavo_common.exits import explain
from octavo_common.settings import load
from octavo_common.telemetry import logs
from octavo_worker.app import run
from octavo_worker.settings import WorkerSettings


def main() -> int:
    """Read the settings, run, and say in one line why it could not."""
    # What reading the settings has to say belongs on stderr too; their own level and form are set after it.
    logs.configure(service="octavo-worker", instance="")
    try:
        return asyncio.run(run(load(WorkerSettings, os.environ)))
    except OctavoError as error:
        return explain("octavo-worker", error)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Everything was closed in order. The interpreter's own ending would take a model apart for seconds, and wait for an
    # engine that is stuck.
    os._exit(code)
