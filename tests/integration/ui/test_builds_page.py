"""The Builds page on a real gateway and a real edge builder: what a person asks for, follows, and takes away."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import streamlit
from build_platform import BuildPlatform, build_platform
from checkpoints import make_llama
from pages import unhurt
from streamlit.dataframe_util import convert_arrow_bytes_to_pandas_df
from streamlit.testing.v1 import AppTest

from octavo import Build, Client
from octavo_ui import build_reading

pytestmark = [pytest.mark.db, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TEXT = "Sheets are folded, cut and sewn; then they are a book.\n" * 40
RECIPE = "calibration: {num_windows: 2, texts: [sheets.txt]}\nevaluation: {num_windows: 1}\n"
GATES = "gates: {min_sqnr_db: %g, max_mean_kl_nats: 100}\n"
BUILD_S = 240.0
CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-dev-shm-usage",
]


@pytest.fixture(scope="module")
def platform(pg_admin_dsn: str, pg_template: str, tmp_path_factory) -> Iterator[BuildPlatform]:
    """A gateway alone, and the pages of this process as its operator's."""
    folder = tmp_path_factory.mktemp("builds")
    make_llama(folder / "tiny")
    patch = pytest.MonkeyPatch()
    with build_platform(pg_admin_dsn, pg_template, folder) as platform:
        patch.setenv("OCTAVO_ADDRESS", platform.start("octavo_gateway", role="gateway"))
        patch.setenv("OCTAVO_API_KEY", platform.admin_key())
        patch.setenv("NO_PROXY", "127.0.0.1")
        streamlit.cache_resource.clear()
        yield platform
        from octavo_ui import api

        api.client().close()
        streamlit.cache_resource.clear()
    patch.undo()


@pytest.fixture(scope="module")
def builder(platform: BuildPlatform) -> BuildPlatform:
    """With an edge builder."""
    platform.start("octavo_edge", "serve", role="edge_builder")
    return platform


@pytest.fixture(scope="module")
def client(platform: BuildPlatform) -> Iterator[Client]:
    with Client(os.environ["OCTAVO_ADDRESS"], api_key=os.environ["OCTAVO_API_KEY"]) as client:
        yield client


def order(client: Client, platform: BuildPlatform, least_db: float) -> Build:
    return client.builds.submit(
        str(platform.folder / "tiny"),
        targets="onnxruntime",
        recipe_yaml=RECIPE + GATES % least_db,
        recipe_texts={"sheets.txt": TEXT},
        context_length=32,
        ars=[8, 1],
    )


@pytest.fixture(scope="module")
def built(builder: BuildPlatform, client: Client) -> Build:
    build = client.builds.wait(order(client, builder, least_db=1.0).id, timeout_s=BUILD_S)
    assert build.state == "succeeded", build.job.failure
    return build


@pytest.fixture(scope="module")
def document(built: Build, client: Client, tmp_path_factory) -> dict:
    """The report of the build, as the builder has delivered it."""
    folder = tmp_path_factory.mktemp("report") / "files"
    client.builds.download(built.id, folder, names=["report.json"])
    return json.loads((folder / "report.json").read_text())


def page(**query: str) -> AppTest:
    def script() -> None:
        from octavo_ui.views import builds

        builds.page()

    app = AppTest.from_function(script, default_timeout=120)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def labelled(elements, label: str):
    return next(element for element in elements if element.label == label)


def asked_for(app: AppTest) -> str:
    (found,) = app.query_params["build"] if isinstance(app.query_params["build"], list) else [app.query_params["build"]]
    return found


def figures(app: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in app.metric}


def tables(app: AppTest) -> dict[str, list[dict]]:
    """Tables by the heading of their first column and their number of columns."""
    found = {
        f"{frame.value.columns[0]}/{len(frame.value.columns)}": frame.value for frame in [*app.dataframe, *app.table]
    }
    return {name: frame.to_dict("records") for name, frame in found.items()}


def drawn(app: AppTest) -> list[list[list[dict]]]:
    """The rows of each layer of each chart."""
    charts = []
    for chart in app.get("vega_lite_chart"):
        spec, sets = json.loads(chart.proto.spec), {}
        for one in chart.proto.datasets:
            sets[one.name] = convert_arrow_bytes_to_pandas_df(one.data.data).to_dict("records")
        if chart.proto.HasField("data"):
            sets[""] = convert_arrow_bytes_to_pandas_df(chart.proto.data.data).to_dict("records")
        charts.append([_rows(layer, sets) for layer in spec.get("layer", [spec])])
    return charts


def _rows(layer: dict, sets: dict[str, list[dict]]) -> list[dict]:
    data = layer.get("data", {})
    return data["values"] if "values" in data else sets[data.get("name", "")]


def test_without_a_builder_the_page_says_how_to_start_one(platform: BuildPlatform) -> None:
    app = page()
    unhurt(app)
    assert len(app.info) == 2
    for info in app.info:
        assert "octavo up --edge-builders 1" in info.value and "octavo[edge]" in info.value


def test_a_person_asks_for_a_build_and_follows_it(builder: BuildPlatform, client: Client) -> None:
    app = page()
    unhurt(app)
    labelled(app.text_input, "Model").set_value(str(builder.folder / "tiny"))
    labelled(app.multiselect, "Targets").set_value(["onnxruntime"])
    labelled(app.radio, "Recipe").set_value("YAML")
    app.run()
    labelled(app.text_area, "YAML").set_value("calibration: {num_windows: 2}\nevaluation: {num_windows: 1}\n")
    labelled(app.number_input, "Context, tokens").set_value(32)
    labelled(app.text_input, "New tokens of each graph").set_value("8, 1")
    labelled(app.text_area, "Builder").set_value("attention=sha")
    labelled(app.button, "Build").click()
    app.run()
    unhurt(app)
    build = client.builds.get(asked_for(app))
    assert (build.targets, build.context_length, build.ars) == (("onnxruntime",), 32, (8, 1))
    assert build.options == {"attention": "sha"} and build.recipe_yaml.startswith("calibration")
    # Until its builder has told how far it is.
    while "Stage" not in figures(app):
        assert not client.builds.get(build.id).state.ended
        app.run()
    unhurt(app)
    assert figures(app)["Stage"] in ("adapt", "optimise", "quantise")
    labelled(app.button, "Cancel").click()
    app.run()
    assert client.builds.wait(build.id, timeout_s=BUILD_S).state == "cancelled"
    app.run()
    assert not app.exception and labelled(app.button, "Cancel").disabled


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda app: None, "no model is named"),
        (lambda app: labelled(app.text_input, "Model").set_value("/nowhere"), "targets are to be named"),
        (lambda app: labelled(app.text_input, "New tokens of each graph").set_value("many"), "whole numbers"),
        (lambda app: labelled(app.text_area, "Builder").set_value("=1"), "has no name"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_sentence(
    builder: BuildPlatform, change: Callable[[AppTest], None], said: str
) -> None:
    app = page()
    change(app)
    labelled(app.button, "Build").click()
    app.run()
    assert not app.exception
    assert len(app.error) == 1 and said in app.error[0].value
    assert "build" not in app.query_params


def test_a_finished_build_shows_its_report(built: Build, document: dict) -> None:
    app = page(build=built.id)
    unhurt(app)
    assert figures(app)["State"] == "succeeded"
    assert [box.value for box in app.success] == ["**onnxruntime**: compiled+run"]
    shown = tables(app)
    stages = [f"{one['stage']} for {one['target']}" if one["target"] else one["stage"] for one in document["stages"]]
    assert [row["stage"] for row in shown["stage/5"]] == stages
    gates = [gate for stage in document["stages"] for gate in stage["gates"]]
    assert [row["gate"] for row in shown["stage/4"]] == [f"`{gate['limit']}`" for gate in gates]
    assert {row[""] for row in shown["stage/4"]} == {":green[holds]"}
    warnings = [warning for stage in document["stages"] for warning in stage["outcome"]["warnings"]]
    (box,) = app.warning
    assert [line.partition(": ")[2] for line in box.value.splitlines()] == warnings != []
    assert [(row["name"], row["sha256"]) for row in shown["name/3"]] == [(f.name, f.sha256) for f in built.result.files]


def test_the_jobs_page_leads_from_a_build_to_its_page(built: Build) -> None:
    def script() -> None:
        from octavo_ui.views import jobs

        jobs.page()

    listed = AppTest.from_function(script, default_timeout=120).run()
    assert not listed.exception and not listed.error
    links = {row["id"]: row["build"] for row in listed.dataframe[0].value.to_dict("records")}
    assert links[built.id] == f"/builds?build={built.id}"
    one = AppTest.from_function(script, default_timeout=120)
    one.query_params["job"] = built.id
    one.run()
    assert not one.exception and not one.error
    (told,) = [text.value for text in one.markdown if "(/builds?" in text.value]
    query = dict([told.partition("?")[2].rstrip(")").split("=")])
    # Where it leads is the build that the job is.
    assert figures(page(**query))["State"] == "succeeded"


def test_its_charts_are_of_the_reports_figures(built: Build, document: dict) -> None:
    app = page(build=built.id)
    quantise = next(stage["outcome"] for stage in document["stages"] if stage["stage"] == "quantise")
    by_stage, cache, weights = drawn(app)
    assert {row["stage"] for row in by_stage[0]} >= {"adapt", "optimise", "quantise", "export"}
    least = min(value for name, value in quantise["metrics"].items() if "sqnr_db" in name)
    assert next(row["drawn"] for row in by_stage[0] if row["stage"] == "quantise") == pytest.approx(least)
    told = {f"{row['what'][:-1]}_{row['layer']}": row["drawn"] for row in cache[0]}
    outputs = {name: value for name, value in quantise["details"]["outputs_sqnr_db"].items() if name != "logits"}
    assert told == pytest.approx({name: float(value) for name, value in outputs.items()})
    told = {f"{row['layer']}.{row['what']}": row["drawn"] for row in weights[0]}
    # layers.0.self_attn.q_proj.weight
    parts = {tuple(name.split(".")): float(value) for name, value in quantise["details"]["weights_sqnr_db"].items()}
    named = {f"{name[1]}.{name[3]}": value for name, value in parts.items() if name[0] == "layers"}
    assert told == pytest.approx(named)


def test_files_come_as_they_were_built(built: Build, client: Client) -> None:
    file = build_reading.file_of(built, "report.html")
    assert file is not None
    data = build_reading.fetched(client, built.id, ["report.html"])
    assert hashlib.sha256(data).hexdigest() == file.sha256
    files = built.result.files
    with zipfile.ZipFile(io.BytesIO(build_reading.fetched(client, built.id, [file.name for file in files]))) as archive:
        digests = {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}
    assert digests == {file.name: file.sha256 for file in files}


def test_a_failed_build_shows_why_and_the_tensors_at_fault(
    built: Build, builder: BuildPlatform, client: Client
) -> None:
    failed = client.builds.wait(order(client, builder, least_db=1000.0).id, timeout_s=BUILD_S)
    app = page(build=failed.id)
    assert not app.exception
    assert failed.job.failure is not None and failed.job.failure.message in app.error[0].value
    assert failed.job.failure.hint in app.error[0].value
    lost = failed.result.stages[-1].worst
    assert [row["tensor"] for row in tables(app)["tensor/2"]] == [f"`{loss.tensor}`" for loss in lost[:10]]
    assert ":red[fails]" in {row[""] for row in tables(app)["stage/4"]}
    listed = {row["id"]: row for row in tables(page())["state/10"]}
    assert (listed[built.id]["state"], listed[failed.id]["state"]) == ("succeeded", "failed")
    assert listed[failed.id]["error"] == failed.job.failure.code


def test_a_build_that_nobody_knows_is_one_sentence(builder: BuildPlatform) -> None:
    app = page(build="0190aaaa-0000-7000-8000-00000000beef")
    assert not app.exception
    assert len(app.error) == 1 and "BUILD_NOT_FOUND" in app.error[0].value


@pytest.fixture
def console(platform: BuildPlatform) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "OCTAVO_CONSOLE_HOST": "127.0.0.1", "OCTAVO_CONSOLE_PORT": str(port)}
    with subprocess.Popen([sys.executable, "-m", "octavo_ui"], env=env) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


@pytest.mark.browser
def test_a_person_reads_and_takes_a_build_in_a_real_browser(built: Build, console: str, tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no Chromium here")
    from playwright.sync_api import Error, expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch_persistent_context(
            tmp_path / "profile", executable_path=chromium, args=CHROMIUM_FLAGS, accept_downloads=True
        )
        try:
            tab = browser.pages[0]
            for left in reversed(range(60)):
                try:
                    tab.goto(f"{console}/builds?build={built.id}")
                    break
                except Error:
                    assert left, "the console does not start"
                    tab.wait_for_timeout(500)
            expect(tab.get_by_text("compiled+run")).to_be_visible(timeout=60_000)
            expect(tab.get_by_test_id("stVegaLiteChart").locator("canvas, svg.marks")).to_have_count(3, timeout=60_000)
            with tab.expect_download(timeout=60_000) as taken:
                tab.get_by_role("button", name="report.json").click()
            file = build_reading.file_of(built, "report.json")
            assert file is not None
            assert hashlib.sha256(Path(taken.value.path()).read_bytes()).hexdigest() == file.sha256
            tab.get_by_role("button", name="All builds").click()
            expect(tab.get_by_role("tab", name="New build")).to_be_visible(timeout=60_000)
        finally:
            browser.close()
