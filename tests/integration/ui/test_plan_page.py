"""The Plan page by Streamlit's test driver, over gRPC against the gateway's own planning."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import streamlit
from fleet_server import Nobody, serving
from pages import unhurt
from streamlit.testing.v1 import AppTest

from octavo.v1 import gateway_pb2_grpc
from octavo_common.clock import SystemClock
from octavo_common.plan.devices import find_device
from octavo_common.plan.formats import kv_format, weight_format
from octavo_common.plan.report import Question, make_plan
from octavo_common.plan.shapes import SHAPES
from octavo_gateway.models import Catalogue
from octavo_gateway.service import ModelServicer

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def gateway() -> Iterator[None]:
    def add(server) -> None:
        servicer = ModelServicer(api=None, catalogue=Catalogue(Nobody(), SystemClock()))  # pyright: ignore[reportArgumentType] - planning asks no api
        gateway_pb2_grpc.add_ModelServiceServicer_to_server(servicer, server)

    patch = pytest.MonkeyPatch()
    with serving(add) as address:
        patch.setenv("OCTAVO_ADDRESS", address)
        patch.setenv("OCTAVO_API_KEY", "ok-test")
        patch.setenv("NO_PROXY", "127.0.0.1")
        streamlit.cache_resource.clear()
        yield
        from octavo_ui import api

        api.client().close()
        streamlit.cache_resource.clear()
    patch.undo()


@pytest.fixture
def page(gateway: None) -> AppTest:
    def script() -> None:
        from octavo_ui.views import plan

        plan.page()

    return AppTest.from_function(script, default_timeout=60).run()


def choose(page: AppTest, label: str, value) -> None:
    boxes = [*page.selectbox, *page.number_input, *page.slider]
    next(box for box in boxes if box.label == label).set_value(value)


def figures(page: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in page.metric}


def test_the_page_shows_the_figures_of_the_calculation(page: AppTest) -> None:
    for label, value in (
        ("Model", "llama-3-70b"),
        ("Device", "A100"),
        ("Weights", "float16"),
        ("Keys and values", "float16"),
        ("Prompt tokens", 4000),
        ("Output tokens", 96),
        ("Devices", 8),
    ):
        choose(page, label, value)
    page.run()
    unhurt(page)
    made = make_plan(
        Question(
            shape=SHAPES["llama-3-70b"],
            device=find_device("A100"),
            stored=weight_format("float16"),
            kv=kv_format("float16"),
            num_prompt_tokens=4000,
            num_output_tokens=96,
            tensor_parallel=8,
        )
    )
    shown = figures(page)
    assert shown["Weights"] == "131.4 GiB" and shown["KV of a sequence"] == "160 MiB"
    assert shown["Sequences that fit"] == str(made.memory.num_sequences)
    table = page.dataframe[0].value
    assert list(table["batch"]) == [1, *(cost.batch for cost in made.decode_by_batch)]
    assert list(table["bound"]) == ["compute", *("memory" for _ in made.decode_by_batch)]
    (roof, _) = (json.loads(chart.proto.spec) for chart in page.get("vega_lite_chart"))
    points = next(layer for layer in roof["layer"] if layer["mark"].get("type") == "circle")["data"]["values"]
    assert len(points) == len(made.decode_by_batch) + 2
    for point in points:
        assert point["rate"] <= min(made.peak, point["intensity"] * made.bandwidth) * (1 + 1e-6), "above the roof"


def test_what_does_not_fit_is_said(page: AppTest) -> None:
    choose(page, "Model", "llama-3.1-405b")
    page.run()
    unhurt(page)
    assert "8 such devices hold them" in " ".join(box.value for box in page.warning)
    assert figures(page)["Sequences that fit"] == "0"


def test_a_device_that_is_not_in_the_table_is_given_by_its_figures(page: AppTest) -> None:
    choose(page, "Device", "another: by its figures")
    page.run()
    choose(page, "Bandwidth, GB/s", 50.0)
    page.run()
    unhurt(page)
    choose(page, "Bandwidth, GB/s", 100.0)
    slow = figures(page)["Token after token"]
    page.run()
    assert figures(page)["Token after token"] != slow


def test_what_cannot_be_planned_is_one_sentence(page: AppTest) -> None:
    choose(page, "Devices", 7)
    page.run()
    assert not page.exception
    assert len(page.error) == 1 and "cannot be split evenly" in page.error[0].value
