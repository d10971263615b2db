"""`python -m octavo_scheduler`: one scheduler process."""

from __future__ import annotations

import os
import sys

from octavo_common.starting import start
from octavo_scheduler.app import run
from octavo_scheduler.settings import SchedulerSettings


def main() -> int:
    """Run the service; returns its exit code."""
    return start("octavo-scheduler", SchedulerSettings, run, os.environ)


if __name__ == "__main__":
    sys.exit(main())
