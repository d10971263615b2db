"""`python -m octavo_worker`: one worker process."""

from __future__ import annotations

import asyncio
import os
import sys

from octavo_common.errors import OctavoError
from octavo_common.settings import load
from octavo_worker.app import run
from octavo_worker.settings import WorkerSettings


def main() -> int:
    """Read the settings, run, and say in one line why it could not."""
    try:
        return asyncio.run(run(load(WorkerSettings, os.environ)))
    except OctavoError as error:
        sys.stderr.write(f"octavo-worker: {error.message}\n" + (f"  {error.hint}\n" if error.hint else ""))
        return 1


if __name__ == "__main__":
    sys.exit(main())
