"""The Engine page by Streamlit's test driver, over gRPC, of a real engine that a test drives step by step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import streamlit
from fakes.engines import Bench, make_request
from fleet_server import serving
from pages import unhurt
from streamlit.dataframe_util import convert_arrow_bytes_to_pandas_df
from streamlit.testing.v1 import AppTest

from octavo.v1 import gateway_pb2, gateway_pb2_grpc, pool_pb2
from octavo_worker import convert, poolview
from octavo_worker.records import Records, StepRecord

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
SHARED, ALONE = "0190aaaa-0000-7000-8000-00000000beef", "0190aaaa-0000-7000-8000-00000000cafe"


class Fleet(gateway_pb2_grpc.FleetServiceServicer):
    """Workers over one engine, or none; it stands still while the page looks."""

    def __init__(self) -> None:
        self.bench, self.records, self.is_alive = Bench(num_blocks=64), Records(), True
        self.ids = ["w" * 12]

    def step(self, count: int) -> None:
        for _ in range(count):
            self.bench.step()
            stats = self.bench.engine.stats()
            self.records.add(StepRecord(time_s=1.7e9 + stats.step, duration_s=0.01, stats=stats))

    async def ListWorkers(self, request, context):
        alive = self.ids if self.is_alive else []
        workers = [gateway_pb2.Worker(id=id, address="host:1", model="tiny", alive=True) for id in alive]
        return gateway_pb2.ListWorkersResponse(workers=workers)

    async def GetWorkerRecords(self, request, context):
        return gateway_pb2.GetWorkerRecordsResponse(records=[convert.step_record(r) for r in self.records.after(0)])

    async def GetWorkerPool(self, request, context):
        view = poolview.view(self.bench.engine.snapshot())
        return pool_pb2.GetWorkerPoolResponse(pool=convert.pool(view))


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    fleet = Fleet()
    with serving(lambda server: gateway_pb2_grpc.add_FleetServiceServicer_to_server(fleet, server)) as address:
        monkeypatch.setenv("OCTAVO_ADDRESS", address)
        monkeypatch.setenv("OCTAVO_API_KEY", "ok-test")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        streamlit.cache_resource.clear()
        yield fleet
        from octavo_ui import api

        api.client().close()
        streamlit.cache_resource.clear()


def show() -> AppTest:
    def script() -> None:
        from octavo_ui.views import engine

        engine.page()

    page = AppTest.from_function(script, default_timeout=60).run()
    unhurt(page)
    return page


def drawn(chart):
    """What a chart draws, as a frame."""
    return convert_arrow_bytes_to_pandas_df(chart.proto.data.data)


def figures(page: AppTest) -> dict[str, str]:
    return {metric.label: metric.value for metric in page.metric}


def test_the_page_shows_who_holds_which_block_and_what_steps_were_made_of(fleet: Fleet) -> None:
    fleet.bench.add(make_request(f"{SHARED}:1", range(8), num_choices=2, max_tokens=20))
    fleet.step(2)
    fleet.bench.add(make_request(f"{ALONE}:3", range(9), max_tokens=20))
    fleet.step(3)
    page, stats = show(), fleet.bench.engine.stats()
    shown = figures(page)
    assert (shown["Used blocks"], shown["Free"]) == (str(stats.num_used_blocks), str(stats.num_free_blocks))
    # Both choices and the third sequence begin with the same two blocks.
    assert shown["Shared"] == "2" and shown["Prefix hits"] == "66.7%"
    table = page.dataframe[0].value
    assert list(table["job"]) == [f"/jobs?job={SHARED}", f"/jobs?job={SHARED}", f"/jobs?job={ALONE}"]
    assert list(table["choice"]) == [0, 1, 0] and list(table["shared"]) == [2, 2, 2]
    cells, *steps = map(drawn, page.get("vega_lite_chart"))
    assert len(cells) == 64
    assert (cells["kind"] != "free").sum() == stats.num_used_blocks
    assert (cells["shared"] > 0).sum() == 2
    assert [len(rows) for rows in steps] == [10, 10, 2]


def test_an_engine_without_work_is_shown_too(fleet: Fleet) -> None:
    page = show()
    assert figures(page)["Free"] == "64" and not page.dataframe
    assert "No step yet." in [caption.value for caption in page.caption]


def test_without_a_worker_the_page_says_so(fleet: Fleet) -> None:
    fleet.is_alive = False
    assert "No worker is alive" in show().info[0].value


def test_the_chosen_worker_stays_chosen_while_others_come_and_until_it_goes(fleet: Fleet) -> None:
    fleet.ids = ["a" * 12, "b" * 12]
    page = show()
    page.selectbox[0].set_value("b" * 12)
    page.run()
    for ids, chosen in ((["0" * 12, *fleet.ids, "c" * 12], "b" * 12), (["a" * 12], "a" * 12)):
        fleet.ids = ids
        page.run()
        unhurt(page)
        assert page.selectbox[0].value == chosen
