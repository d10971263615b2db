"""/metrics, /health and log lines, as an outside reader takes them."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from octavo_common.errors import FailedPrecondition
from octavo_common.settings import CommonSettings
from octavo_common.telemetry import logs, names, setup
from octavo_common.telemetry.looplag import measure_loop_lag
from octavo_common.telemetry.metrics_http import MetricsServer


class ManualClock:
    now = 0.0
    late_s = 0.0

    def monotonic(self):
        return self.now

    def time(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds + self.late_s
        await asyncio.sleep(0)


@pytest.fixture
def telemetry():
    made = setup.init("octavo-test", "one", CommonSettings())
    yield made
    made.shutdown()


def families(telemetry):
    return {family.name: family for family in text_string_to_metric_families(telemetry.prometheus_text().decode())}


def test_every_metric_comes_out_under_its_name_with_its_buckets(telemetry) -> None:
    for metric in names.ALL_METRICS:
        labels = {label: "x" for label in metric.labels}
        if metric.kind is names.Kind.COUNTER:
            telemetry.instruments.add(metric, 2, labels)
        elif metric.kind is names.Kind.HISTOGRAM:
            telemetry.instruments.record(metric, 1.0, labels)
        else:
            telemetry.instruments.observe(metric, lambda labels=labels: [(3.0, labels)])
    found = families(telemetry)
    for metric in names.ALL_METRICS:
        name = metric.name.replace(".", "_")
        if metric.name.startswith("gen_ai."):
            name += "_seconds"
        family = found[name.removesuffix("_total") if metric.kind is names.Kind.COUNTER else name]
        assert family.documentation == metric.description
        assert {key for s in family.samples for key in s.labels} - {"le"} == {
            n.replace(".", "_") for n in metric.labels
        }
        if metric.kind is names.Kind.HISTOGRAM:
            bounds = [float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket")]
            assert bounds == [*map(float, metric.buckets), float("inf")]
        elif metric.kind is names.Kind.COUNTER:
            assert [(s.name, s.value) for s in family.samples] == [(f"{name}_total", 2.0)]
        else:
            assert [s.value for s in family.samples] == [3.0]


def test_buckets_rise_and_names_are_unique() -> None:
    assert len({m.name for m in names.ALL_METRICS}) == len(names.ALL_METRICS)
    for metric in names.ALL_METRICS:
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert bool(metric.buckets) == (metric.kind is names.Kind.HISTOGRAM)
        assert metric.name.startswith(("octavo_", "gen_ai."))


def test_a_label_that_is_not_defined_is_a_bug(telemetry) -> None:
    with pytest.raises(AssertionError):
        telemetry.instruments.add(names.JOBS_ASSIGNED, 1, {"user": "me"})
    with pytest.raises(AssertionError):
        telemetry.instruments.record(names.JOBS_ASSIGNED, 1)


async def test_the_lag_of_the_event_loop_is_measured(telemetry) -> None:
    clock = ManualClock()
    clock.late_s = 0.3
    task = asyncio.create_task(measure_loop_lag(telemetry.instruments, clock))
    for _ in range(6):
        await asyncio.sleep(0)
    task.cancel()
    samples = {s.name: s.value for s in families(telemetry)["octavo_event_loop_lag_seconds"].samples}
    count = samples["octavo_event_loop_lag_seconds_count"]
    assert count > 0
    assert samples["octavo_event_loop_lag_seconds_sum"] == pytest.approx(0.3 * count)


async def test_the_tasks_of_the_event_loop_are_counted(telemetry) -> None:
    clock = ManualClock()
    others = [asyncio.create_task(asyncio.Event().wait()) for _ in range(3)]
    watch = asyncio.create_task(measure_loop_lag(telemetry.instruments, clock))
    await asyncio.sleep(0)
    (sample,) = families(telemetry)["octavo_event_loop_tasks"].samples
    # This test's own task and the one that counts are tasks too.
    assert sample.value == len(others) + 2
    for task in (*others, watch):
        task.cancel()


async def fetch(url: str, method: str = "GET") -> tuple[int, str, str]:
    def get() -> tuple[int, str, str]:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=5) as answer:
                return answer.status, answer.headers["content-type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["content-type"], error.read().decode()

    return await asyncio.to_thread(get)


async def test_metrics_and_health_are_served(telemetry) -> None:
    state = {"ok": True}
    server = MetricsServer(metrics=telemetry.prometheus_text, health=lambda: (state["ok"], {"ok": state["ok"]}))
    base = f"http://127.0.0.1:{await server.start('127.0.0.1', 0)}"
    telemetry.instruments.add(names.JOBS_ASSIGNED, 7)
    code, kind, text = await fetch(f"{base}/metrics")
    assert (code, kind.split(";")[0]) == (200, "text/plain")
    assert "octavo_jobs_assigned_total 7.0" in text
    assert await fetch(f"{base}/health?x=1") == (200, "application/json", '{"ok": true}\n')
    state["ok"] = False
    assert (await fetch(f"{base}/health"))[0] == 503
    assert (await fetch(f"{base}/metrics", "HEAD"))[2] == ""
    assert (await fetch(f"{base}/other"))[0] == 404
    assert (await fetch(f"{base}/metrics", "DELETE"))[0] == 405
    await server.stop()


@pytest.mark.parametrize("request_head", [b"\r\n\r\n", b"GET\r\n\r\n", b"x" * 40_000, b""])
async def test_nonsense_does_not_hurt_the_metrics_server(telemetry, request_head: bytes) -> None:
    server = MetricsServer(metrics=telemetry.prometheus_text, health=lambda: (True, {}))
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_head)
    writer.write_eof()
    try:
        answer = await asyncio.wait_for(reader.read(), 5)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    except ConnectionError:
        pass
    writer.close()
    assert (await fetch(f"http://127.0.0.1:{port}/health"))[0] == 200
    await server.stop()


async def test_a_taken_metrics_port_is_named(telemetry) -> None:
    first = MetricsServer(metrics=telemetry.prometheus_text, health=lambda: (True, {}))
    port = await first.start("127.0.0.1", 0)
    with pytest.raises(FailedPrecondition, match=str(port)):
        await MetricsServer(metrics=telemetry.prometheus_text, health=lambda: (True, {})).start("127.0.0.1", port)
    await first.stop()


@pytest.fixture
def lines():
    """What is logged, as parsed lines."""
    stream = io.StringIO()
    logs.configure(service="octavo-test", instance="i-1", stream=stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_says_who_where_and_in_which_span(lines, telemetry) -> None:
    logs.configure(service="octavo-test", instance="i-1", stream=(stream := io.StringIO()))
    with telemetry.tracer.start_as_current_span("work") as span:
        structlog.get_logger("x").info("job.claimed", wait_s=1.5)
        logging.getLogger("some.library").warning("it is %s", "late")
    structlog.get_logger("x").info("idle")
    claimed, foreign, idle = [json.loads(line) for line in stream.getvalue().splitlines()]
    context = span.get_span_context()
    for line in (claimed, foreign):
        assert (line["service"], line["instance"]) == ("octavo-test", "i-1")
        assert (line["trace_id"], line["span_id"]) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert (claimed["event"], claimed["wait_s"], claimed["level"]) == ("job.claimed", 1.5, "info")
    assert (foreign["event"], foreign["logger"]) == ("it is late", "some.library")
    assert "trace_id" not in idle


def test_levels_and_odd_values(lines) -> None:
    log = structlog.get_logger("x")
    log.debug("hidden")
    log.info("odd", value=object(), text="\ud800 two\nlines")
    (line,) = lines()
    assert line["text"] == "\ud800 two\nlines"


def test_tracebacks_hold_no_local_variables(lines) -> None:
    def deep() -> None:
        prompt = "the secret prompt"
        raise ValueError(len(prompt))

    try:
        deep()
    except ValueError:
        structlog.get_logger("x").exception("failed")
        logging.getLogger("y").exception("failed too")
    assert len(lines()) == 2
    assert all("secret prompt" not in json.dumps(line) for line in lines())
    assert all(line["exception"][0]["exc_type"] == "ValueError" for line in lines())


def test_nothing_goes_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(service="s", instance="i", log_format="console")
    structlog.get_logger("x").warning("to.stderr", n=1)
    logging.getLogger("y").warning("also")
    said = capsys.readouterr()
    assert said.out == ""
    assert "to.stderr" in said.err
    assert "also" in said.err


UNCAUGHT = """
import threading
from octavo_common.settings import CommonSettings
from octavo_common.starting import start

class Broken:
    def __del__(self):
        raise ValueError("in its end")

def fail():
    raise ValueError("in a thread")

async def run(settings):
    thread = threading.Thread(target=fail, name="worker-7")
    thread.start()
    thread.join()
    Broken()
    return 0

raise SystemExit(start("octavo-test", CommonSettings, run, {}))
"""


def test_what_nobody_caught_is_a_line_of_the_log() -> None:
    run = subprocess.run([sys.executable, "-c", UNCAUGHT], capture_output=True, text=True, check=True)
    told = [json.loads(line) for line in run.stderr.splitlines()]
    assert [(line["event"], line["level"], line["exception"][0]["exc_value"]) for line in told] == [
        ("process.thread_failed", "error", "in a thread"),
        ("process.unraisable", "error", "in its end"),
    ]
    assert told[0]["thread"] == "worker-7" and "__del__" in told[1]["object"]
