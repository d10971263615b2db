"""Starts the console: `python -m octavo_ui`."""

from __future__ import annotations

from pathlib import Path

from octavo_ui.server import serve
from octavo_ui.settings import UiSettings

OPTIONS: dict[str, str | bool] = {
    "server.headless": True,
    "server.fileWatcherType": "none",
    "server.runOnSave": False,
    "browser.gatherUsageStats": False,
    "client.showErrorDetails": "none",
    "client.toolbarMode": "minimal",
    "global.developmentMode": False,
}


def main() -> None:
    """Serve the pages until a signal."""
    settings = UiSettings.from_env()
    serve(str(Path(__file__).with_name("app.py")), host=settings.host, port=settings.port, options=OPTIONS)


if __name__ == "__main__":
    main()
