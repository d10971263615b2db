"""What a person has chosen on a form stays chosen while the platform changes under it."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest


def _form() -> None:
    import streamlit as st

    from octavo import BuildTarget
    from octavo_ui.views import build_order

    missing = ("not looked at yet",) if st.query_params["looked_at"] == "no" else ()
    build_order.order([BuildTarget(name="gguf"), BuildTarget(name="onnxruntime", missing=missing)])


def test_a_target_stays_chosen_when_its_builder_has_looked_at_its_tool_chain() -> None:
    app = AppTest.from_function(_form, default_timeout=60)
    app.query_params["looked_at"] = "no"
    app.run()
    app.multiselect[0].set_value(["onnxruntime"])
    app.run()
    assert [warning.value for warning in app.warning] == ["onnxruntime: not looked at yet"]
    app.query_params["looked_at"] = "yes"
    app.run()
    assert not app.exception and not app.warning
    assert app.multiselect[0].value == ["onnxruntime"]
