"""`python -m octavo_gateway`: reads the settings and runs the gateway until SIGTERM."""

from __future__ import annotations

import asyncio
import os
import sys

from octavo_common.errors import OctavoError
from octavo_common.exits import explain
from octavo_common.settings import load
from octavo_gateway.app import run
from octavo_gateway.settings import GatewaySettings


def main() -> int:
    """Run the service; a setting that cannot be used ends it with one line and its hint."""
    try:
        return asyncio.run(run(load(GatewaySettings, os.environ)))
    except OctavoError as error:
        return explain("octavo-gateway", error)


if __name__ == "__main__":
    sys.exit(main())
