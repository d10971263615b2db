"""The console on a real platform: each page by Streamlit's test driver, and once as a person sees it in Chromium."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import unhurt
from streamlit.testing.v1 import AppTest

from octavo import Client

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
SCREENSHOT = Path(__file__).parents[2] / "docs" / "pictures" / "console.png"


@pytest.fixture(scope="module")
def console(octavo) -> Iterator[str]:
    """Address of the console of a running platform, whose admin key the pages in this process use too."""
    octavo.ok("up", "--detach", "--wait", timeout_s=260)
    status = octavo.status()
    key = (octavo.data_dir / "secrets" / "admin_key").read_text().strip()
    patch = pytest.MonkeyPatch()
    patch.setenv("OCTAVO_ADDRESS", status["grpc"][0])
    patch.setenv("OCTAVO_API_KEY", key)
    patch.setenv("NO_PROXY", "127.0.0.1")
    yield f"http://{status['console']}" if "//" not in status["console"] else status["console"]
    import streamlit

    streamlit.cache_resource.clear()
    patch.undo()


@pytest.fixture
def client(console: str) -> Iterator[Client]:
    with Client(os.environ["OCTAVO_ADDRESS"], api_key=os.environ["OCTAVO_API_KEY"]) as client:
        yield client


def _page(name: str) -> AppTest:
    def script(name: str) -> None:
        import importlib

        importlib.import_module(f"octavo_ui.views.{name}").page()

    return AppTest.from_function(script, args=(name,), default_timeout=60)


def _texts(app: AppTest) -> str:
    return " ".join(element.value for element in [*app.markdown, *app.caption, *app.error, *app.info, *app.subheader])


def test_the_prompt_page_streams_an_answer_with_its_figures(console: str) -> None:
    app = _page("prompt").run()
    app.text_area[0].set_value("What is the capital of Japan?")
    app.button[0].click()
    app.run()
    unhurt(app)
    assert "Tokyo" in _texts(app)
    assert {metric.label for metric in app.metric} == {"Time to first token", "Time per token", "Tokens/s"}


def test_the_prompt_page_shows_a_refusal_as_one_sentence(console: str) -> None:
    app = _page("prompt").run()
    app.text_area[0].set_value("")
    app.checkbox[0].check()
    app.button[0].click()
    app.run()
    assert not app.exception
    assert len(app.error) == 1 and "EMPTY_PROMPT" in app.error[0].value


def test_the_jobs_page_lists_jobs_and_tells_the_story_of_one(console: str, client: Client) -> None:
    job = client.wait(client.submit("Once upon a time", max_tokens=4, temperature=0).id)
    app = _page("jobs").run()
    assert not app.exception
    assert job.id in list(app.dataframe[0].value["id"])
    app = _page("jobs")
    app.query_params["job"] = job.id
    app.run()
    assert not app.exception
    assert job.result is not None and job.result.text.strip() in _texts(app)
    assert list(app.dataframe[0].value["event"]) == ["queued", "assigned", "running", "succeeded"]


def test_a_job_can_be_cancelled_and_retried_from_its_page(console: str, client: Client) -> None:
    handle = client.submit("Once upon a time", max_tokens=2000, temperature=0, ignore_eos=True)
    app = _page("jobs")
    app.query_params["job"] = handle.id
    app.run()
    next(b for b in app.button if b.label == "Cancel").click()
    app.run()
    assert client.wait(handle.id, timeout_s=20).state == "cancelled"
    app.run()
    next(b for b in app.button if b.label == "Retry").click()
    app.run()
    (again,) = [job for job in client.jobs.list(limit=1) if job.id != handle.id]
    assert app.query_params["job"] == again.id or app.query_params["job"] == [again.id]
    client.jobs.cancel(again.id)


def test_the_workers_page_shows_load_and_blocks(console: str) -> None:
    app = _page("workers").run()
    unhurt(app)
    (row,) = app.dataframe[0].value.to_dict("records")
    assert row["state"] == "alive" and row["blocks"] > 0
    assert len(app.get("vega_lite_chart")) == 2


def test_the_engine_page_shows_who_holds_which_block(console: str, client: Client) -> None:
    handle = client.submit("Once upon a time", max_tokens=1000, temperature=0, ignore_eos=True)
    while client.jobs.get(handle.id).state != "running":
        time.sleep(0.1)
    app = _page("engine").run()
    client.jobs.cancel(handle.id)
    unhurt(app)
    (row,) = app.dataframe[0].value.to_dict("records")
    assert row["job"] == f"/jobs?job={handle.id}" and row["blocks"] > 0
    assert len(app.get("vega_lite_chart")) == 4


def test_the_builds_page_says_how_to_start_an_edge_builder(console: str) -> None:
    app = _page("builds").run()
    unhurt(app)
    assert "`octavo up --edge-builders 1`" in _texts(app)


def test_the_plan_page_plans_the_model_that_is_served(console: str, client: Client) -> None:
    app = _page("plan").run()
    unhurt(app)
    (model,) = client.models()
    assert app.selectbox[0].value == model.name
    plan = client.plan(model.name, device="L4")
    assert plan.num_parameters == 134_515_008 and plan.num_sequences > 0


@pytest.mark.browser
def test_a_person_asks_in_a_real_browser(console: str, tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no Chromium here")
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            tmp_path, executable_path=chromium, args=CHROMIUM_FLAGS, viewport={"width": 1280, "height": 900}
        )
        try:
            page = browser.pages[0]
            page.goto(f"{console}/prompt")
            expect(page.get_by_role("button", name="Generate")).to_be_visible(timeout=60_000)
            expect(page.get_by_text("Page not found")).to_have_count(0)
            page.goto(console)
            page.get_by_role("button", name="Generate").click(timeout=60_000)
            expect(page.get_by_text("Tokyo").first).to_be_visible(timeout=60_000)
            expect(page.get_by_text("Tokens/s")).to_be_visible(timeout=60_000)
            assert page.url == f"{console}/prompt"
            page.get_by_role("link", name="Workers").click()
            expect(page.get_by_role("heading", name="Workers")).to_be_visible(timeout=30_000)
            expect(page.locator("canvas, svg.marks").first).to_be_visible(timeout=30_000)
            page.screenshot(path=tmp_path / "console.png")
            assert (tmp_path / "console.png").stat().st_size > 10_000
            if os.environ.get("OCTAVO_TEST_KEEP_PICTURES"):
                SCREENSHOT.parent.mkdir(exist_ok=True)
                shutil.copy(tmp_path / "console.png", SCREENSHOT)
        finally:
            browser.close()
