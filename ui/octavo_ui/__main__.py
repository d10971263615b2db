"""Starts the console: `python -m octavo_ui`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from octavo_ui.settings import UiSettings

OPTIONS = {
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "server.runOnSave": "false",
    "browser.gatherUsageStats": "false",
    "client.showErrorDetails": "none",
    "client.toolbarMode": "minimal",
    "global.developmentMode": "false",
}


def main() -> None:
    """Replace this process by Streamlit's server, so that signals and the exit code are its own."""
    settings = UiSettings.from_env()
    options = {**OPTIONS, "server.address": settings.host, "server.port": str(settings.port)}
    app = str(Path(__file__).with_name("app.py"))
    flags = [f"--{name}={value}" for name, value in options.items()]
    os.execv(sys.executable, [sys.executable, "-m", "streamlit", "run", app, *flags])


if __name__ == "__main__":
    main()
