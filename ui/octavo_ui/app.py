"""The console's entry: navigation only. Pages draw, `api` talks, the SDK does the work."""

from __future__ import annotations

import streamlit as st

from octavo_ui.views import builds, engine, jobs, plan, prompt, workers


def main() -> None:
    """Draw the page that the address names."""
    st.set_page_config(page_title="Octavo", page_icon=":material/auto_stories:", layout="wide")
    ask = st.Page(prompt.page, title="Prompt", icon=":material/chat:", url_path="prompt")

    def home() -> None:
        st.switch_page(ask)

    pages = [
        # The page at / has no path of its own, so it leads to one that has.
        st.Page(home, title="Octavo", url_path="home", default=True, visibility="hidden"),
        ask,
        st.Page(jobs.page, title="Jobs", icon=":material/list_alt:", url_path="jobs"),
        st.Page(workers.page, title="Workers", icon=":material/memory:", url_path="workers"),
        st.Page(engine.page, title="Engine", icon=":material/grid_view:", url_path="engine"),
        st.Page(builds.page, title="Builds", icon=":material/handyman:", url_path="builds"),
        st.Page(plan.page, title="Plan", icon=":material/calculate:", url_path="plan"),
    ]
    st.navigation(pages).run()


main()
