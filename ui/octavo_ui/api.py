"""The console's one connection to the gateway, and how its failures are shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

import octavo
from octavo_ui.settings import UiSettings


@st.cache_resource(show_spinner=False)
def client() -> octavo.Client:
    """One synchronous client for all sessions: its channel may be used from many threads."""
    settings = UiSettings.from_env()
    return octavo.Client(settings.address, api_key=settings.api_key)


@contextmanager
def failures_shown() -> Iterator[None]:
    """Show an error of the platform as one sentence with its hint; no traceback reaches the page."""
    try:
        yield
    except octavo.OctavoError as error:
        st.error(f"**{error.code}**: {error.message}" + (f"\n\n{error.hint}" if error.hint else ""))
