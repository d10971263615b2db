"""What the tests of the console's pages ask of every page."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest


def unhurt(app: AppTest) -> None:
    """The page shows no error; where it does, the failure says which."""
    assert not app.exception
    assert [error.value for error in app.error] == []
