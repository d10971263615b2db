"""`python -m octavo_gateway`: one gateway process."""

from __future__ import annotations

import os
import sys

from octavo_common.starting import start
from octavo_gateway.app import run
from octavo_gateway.settings import GatewaySettings


def main() -> int:
    """Run the service; returns its exit code."""
    return start("octavo-gateway", GatewaySettings, run, os.environ)


if __name__ == "__main__":
    sys.exit(main())
