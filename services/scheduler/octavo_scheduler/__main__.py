"""`python -m octavo_scheduler`: one scheduler process."""

from __future__ import annotations

import asyncio
import os
import sys

from octavo_common.errors import OctavoError
from octavo_common.exits import explain
from octavo_common.settings import load
from octavo_scheduler.app import run
from octavo_scheduler.settings import SchedulerSettings


def main() -> int:
    """Read the settings, run, and say in one line why it could not."""
    try:
        return asyncio.run(run(load(SchedulerSettings, os.environ)))
    except OctavoError as error:
        return explain("octavo-scheduler", error)


if __name__ == "__main__":
    sys.exit(main())
