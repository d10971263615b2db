"""The loop of a builder over the real table, with a process in the place of the build that does what a test says."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
import structlog
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import SecretStr
from sqlalchemy import text

from octavo_common import ids, store
from octavo_common.clock import SystemClock
from octavo_common.db.engine import Database, connect
from octavo_common.jobs.builds import BuildResult, BuildSpec
from octavo_common.jobs.model import EDGE_BUILD, Job, JobState, NewJob, NewProcess
from octavo_common.jobs.transitions import JOBS_CHANNEL, worker_channel
from octavo_common.telemetry.instruments import Instruments
from octavo_edge.serving.building import Builds
from octavo_edge.serving.library import Library
from octavo_edge.serving.meters import Meters
from octavo_edge.serving.presence import Presence
from octavo_edge.serving.process import BuildProcess
from octavo_edge.serving.settings import EdgeSettings
from octavo_edge.serving.sweeping import sweep

pytestmark = pytest.mark.db

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STAGE = (
    '{"event": "stage", "stage": "adapt", "cached": false, "seconds": 1.0, "size_bytes": 1, "peak_memory_bytes": 1,'
    ' "metrics": {}, "gates": [], "warnings": [], "worst": []}'
)
PROGRESS = '{"event": "progress", "stage": "optimise", "done": 1, "total": 3, "what": "x"}'
# What the children below begin with: the order of the service in `arguments`, and `tell`.
PREAMBLE = """
import os, signal, subprocess, sys, time
arguments = sys.argv[1:]
out = arguments[arguments.index("--out") + 1]
def tell(*lines):
    print(*lines, sep="\\n", flush=True)
"""
WORKS = f"tell('''{STAGE}''', '''{PROGRESS}''')\n"
FOR_EVER = WORKS + "time.sleep(600)\n"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + FOR_EVER
DELIVERS = (
    "os.makedirs(out); open(out + '/report.json', 'w').write('{}')\n"
    """tell('{"event": "built", "outcome": "compiled+run", "failed_targets": []}')\n"""
)


class Loop:
    """One builder in the test's event loop."""

    def __init__(self, builds: Builds, library: Library, database: Database, spans: Any, metrics: Any) -> None:
        self.builds, self.library, self.spans, self.metrics = builds, library, spans, metrics
        self.jobs, self.store = store.JobStore(database), store.BuildStore(database)
        self.placement = store.PlacementStore(database)
        self.database = database
        self.processes: list[BuildProcess] = []

    async def submit(self, **changes: Any) -> Job:
        spec = BuildSpec(model="smollm2-135m", targets=("onnxruntime",))
        job = NewJob(
            id=ids.new_job_id(), tenant="acme", model=spec.model, model_digest="", payload=spec.to_json(),
            prompt_ids=(), kind=EDGE_BUILD, traceparent=TRACE, **changes,
        )  # fmt: skip
        return (await self.jobs.submit(job, max_queued=None))[0]

    async def until(self, job: Job, *states: JobState) -> Job:
        return await self.when(job, lambda row: row.state in states)

    async def when(self, job: Job, holds: Callable[[Job], bool]) -> Job:
        async with asyncio.timeout(30):
            while not holds(row := await self.jobs.get(job.id, tenant=None)):
                await asyncio.sleep(0.05)
        return row

    async def at_work(self) -> None:
        """Until the build has told of its work."""
        async with asyncio.timeout(30):
            while self.builds.running is None or self.builds.running.log.progress is None:
                await asyncio.sleep(0.02)

    async def left(self) -> None:
        """Until the loop is done with its build."""
        async with asyncio.timeout(30):
            while self.builds.running is not None:
                await asyncio.sleep(0.02)

    def children_are_gone(self) -> bool:
        return not any(psutil.pid_exists(process.pid) for process in self.processes)


Making = Callable[..., Any]


@pytest.fixture
async def making(pg_dsn: str, tmp_path: Path) -> AsyncIterator[Making]:
    """Makes a loop whose builds are processes that run a script."""
    database = connect(pg_dsn, pool_size=6)

    @asynccontextmanager
    async def make(script: str, **settings: Any) -> AsyncIterator[Loop]:
        clock, process_id = SystemClock(), ids.new_process_id()
        spans, metrics = InMemorySpanExporter(), InMemoryMetricReader()
        tracer = TracerProvider()
        tracer.add_span_processor(SimpleSpanProcessor(spans))
        meter = MeterProvider([metrics])
        configured = EdgeSettings(
            data_dir=tmp_path,
            database_url=pg_dsn,
            internal_token=SecretStr("t"),
            poll_s=0.1,
            **{"lease_s": 1.0, **settings},
        )
        library = Library(tmp_path / "edge")
        loop: Loop

        async def start(arguments: Sequence[str], environment: Mapping[str, str]) -> BuildProcess:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", PREAMBLE + script, *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=dict(environment),
                start_new_session=True,
            )
            loop.processes.append(BuildProcess(process))
            return loop.processes[-1]

        async with (
            store.Listener(pg_dsn, [JOBS_CHANNEL], clock) as jobs,
            store.Listener(pg_dsn, [worker_channel(process_id)], clock) as own,
        ):
            builds = Builds(
                process_id=process_id,
                store=store.BuildStore(database),
                listener=jobs,
                library=library,
                meters=Meters(tracer.get_tracer("t"), Instruments(meter.get_meter("t")), clock, process_id="p"),
                settings=configured,
                clock=clock,
                start=start,
            )
            loop = Loop(builds, library, database, spans, metrics)
            process = NewProcess(id=process_id, role="edge_builder", lease_s=configured.lease_s)
            presence = Presence(store.ProcessStore(database), process, builds, own, clock)
            await presence.announce("127.0.0.1:1", "")
            tasks = [asyncio.create_task(builds.run()), asyncio.create_task(presence.keep())]
            try:
                yield loop
                builds.drain()
                await asyncio.wait_for(tasks[0], 20)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        tracer.shutdown()
        meter.shutdown()

    yield make
    await database.dispose()


async def test_a_build_that_delivers_succeeds_in_the_trace_of_its_request(making: Making) -> None:
    noise = "tell('Loading weights: 100%', '{}', '[1, 2]')\n"
    damaged = WORKS.replace('"cached": false', '"cached": false, "replaced": true')
    async with making(noise + damaged + DELIVERS) as loop:
        job = await loop.submit()
        ended = await loop.until(job, JobState.SUCCEEDED, JobState.FAILED)
        assert ended.error is None
        result = BuildResult.from_json(ended.result or {})
        assert [(stage.stage, stage.replaced) for stage in result.stages] == [("adapt", True)]
        assert [file.name for file in result.files] == ["report.json"]
        assert loop.library.files(job.id) == list(result.files)
        # Its temporary folder is gone.
        assert not (loop.library.folders(job.id, 1, Path()).out.parent / "work").exists()
    (span,) = loop.spans.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == TRACE.split("-")[1]
    assert span.attributes["octavo.build.outcome"] == "succeeded"
    assert [(event.name, event.attributes["stage"]) for event in span.events] == [("stage", "adapt")]
    told = {
        metric.name: [point.attributes for point in metric.data.data_points]
        for metric in loop.metrics.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    }
    assert told["octavo_builds"] == [{"outcome": "succeeded"}]
    assert told["octavo_build_stage_time_seconds"] == [{"stage": "adapt"}]
    assert told["octavo_build_damaged_artifacts"] == [{"stage": "adapt"}]


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("sys.exit(3)", "BUILD_CRASHED", "exit code 3"),
        (WORKS + "os.kill(os.getpid(), signal.SIGSEGV)", "BUILD_CRASHED", "SIGSEGV in optimise"),
        ("sys.stderr.write('libfoo: cannot open\\n'); sys.exit(1)", "BUILD_CRASHED", "exit code 1"),
        (
            DELIVERS.replace('"failed_targets": []', '"failed_targets": ["coreml"]') + "sys.exit(1)",
            "TARGET_FAILED",
            "not built for coreml",
        ),
        (
            """tell('{"event": "failed", "code": "UNSUPPORTED_MODEL", "message": "mamba"}'); sys.exit(2)""",
            "UNSUPPORTED_MODEL",
            "mamba",
        ),
    ],
)
async def test_whatever_ends_the_process_ends_the_build_alone_and_says_how(
    making: Making, script: str, code: str, said: str
) -> None:
    async with making(script) as loop:
        first, second = await loop.submit(), await loop.submit()
        for job in (first, second):
            ended = await loop.until(job, JobState.FAILED, JobState.SUCCEEDED)
            assert ended.error is not None
            assert (ended.error["code"], said in ended.error["message"]) == (code, True), ended.error


NAMES_PATHS = """
import json
place = os.path.abspath(out)
tell(json.dumps({"event": "stage", "stage": "compile", "cached": False, "seconds": 1.0, "size_bytes": 1,
    "peak_memory_bytes": 1, "metrics": {}, "gates": [], "warnings": [place + "/a.bin is large"], "worst": []}))
if "SAYS" == "failed":
    tell(json.dumps({"event": "failed", "code": "X", "message": "cannot read " + place + "/a.bin of /model/add",
        "hint": "see /usr/lib/vendor/log"}))
else:
    os.makedirs(out); open(out + '/report.json', 'w').write('{}')
    tell(json.dumps({"event": "built", "outcome": "coreml failed: " + place + "/a.bin", "failed_targets": ["coreml"]}))
sys.exit(1)
"""


@pytest.mark.parametrize("says", ["failed", "built"])
async def test_who_asked_for_a_build_is_told_no_path_of_the_builders_host_and_its_log_is(
    making: Making, says: str, tmp_path: Path
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with making(NAMES_PATHS.replace("SAYS", says)) as loop:
            job = await loop.submit()
            ended = await loop.until(job, JobState.FAILED, JobState.SUCCEEDED)
    assert ended.error is not None and ended.result is not None
    told = json.dumps([ended.error, ended.result])
    assert str(tmp_path) not in told and "/usr/lib" not in told
    assert ended.result["stages"][0]["warnings"] == [".../a.bin is large"]
    if says == "failed":
        assert ended.error["message"] == "cannot read .../a.bin of /model/add"
        assert ended.error["hint"] == "see .../log"
    else:
        assert ended.error["message"] == "not built for coreml: coreml failed: .../a.bin"
        assert ended.result["outcome"] == "coreml failed: .../a.bin"
    (entry,) = [entry for entry in logs if entry["event"] == "build.failed"]
    assert f"{loop.library.folders(job.id, 1, Path()).out}/a.bin" in entry["error"]


async def test_a_build_that_will_not_stop_is_killed_with_all_that_it_has_begun(making: Making) -> None:
    begins = "subprocess.Popen(['sleep', '600'])\n"
    async with making(begins + STUBBORN, grace_s=0.3) as loop:
        job = await loop.submit()
        await loop.at_work()
        begun = psutil.Process(loop.processes[0].pid).children()
        assert len(begun) == 1
        await loop.jobs.cancel(job.id, tenant="acme")
        cancelled = await loop.until(job, JobState.CANCELLED)
        assert BuildResult.from_json(cancelled.result or {}).outcome == "cancelled"
        assert loop.children_are_gone()
        psutil.wait_procs(begun, timeout=5)
        assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in begun)
        await loop.left()
        assert loop.library.jobs() == []


async def test_a_deadline_is_counted_here(making: Making) -> None:
    async with making(FOR_EVER) as loop:
        job = await loop.submit(timeout_s=1.5)
        ended = await loop.until(job, JobState.FAILED)
        assert ended.error is not None
        assert ended.error["code"] == "DEADLINE_EXCEEDED"
        assert ended.fence == 1
        assert loop.children_are_gone()


async def test_a_build_that_tells_nothing_for_too_long_is_ended_and_says_where(making: Making) -> None:
    speaks = f"for _ in range(6):\n    tell('''{PROGRESS}''')\n    time.sleep(0.5)\n"
    async with making(
        speaks + "sys.stderr.write('waiting for a licence\\n')\n" + STUBBORN, stalled_after_s=2, grace_s=0.2
    ) as loop:
        ended = await loop.until(await loop.submit(), JobState.FAILED)
        assert ended.error is not None
        assert (ended.error["code"], "in optimise" in ended.error["message"]) == ("BUILD_STALLED", True)
        assert "waiting for a licence" in ended.error["hint"]
        assert loop.builds.running is None or loop.builds.running.log.elapsed_s > 4
        assert loop.children_are_gone()


async def test_a_build_that_another_has_taken_is_killed_and_nothing_is_written(making: Making) -> None:
    async with making(FOR_EVER) as loop:
        job = await loop.submit()
        await loop.at_work()
        other = ids.new_process_id()
        async with loop.database.begin() as connection:
            await connection.execute(
                text("update jobs set fence = fence + 2, worker_id = :other where id = :id"),
                {"other": other, "id": job.id},
            )
        # The other one's work, in the directory that both use.
        theirs = loop.library.open(job.id, 3, BuildSpec(model="m", targets=("t",), recipe="", recipe_yaml="theirs"))
        await loop.left()
        assert loop.children_are_gone()
        row = await loop.jobs.get(job.id, tenant=None)
        assert (row.state, row.worker_id, row.fence, row.result) == (JobState.RUNNING, other, 3, None)
        assert theirs.read_text() == "theirs"
        assert not loop.library.folders(job.id, 1, Path()).out.parent.exists()


async def test_a_build_that_fails_after_its_lease_was_lost_leaves_the_work_of_the_next(making: Making) -> None:
    # Nobody tells it of the loss: the table is asked only when its process has ended.
    async with making(WORKS + "time.sleep(1); sys.exit(3)", lease_s=60.0) as loop:
        job = await loop.submit()
        await loop.at_work()
        async with loop.database.begin() as connection:
            await connection.execute(
                text("update jobs set fence = fence + 2, worker_id = :other where id = :id"),
                {"other": ids.new_process_id(), "id": job.id},
            )
        theirs = loop.library.open(job.id, 3, BuildSpec(model="m", targets=("t",), recipe="", recipe_yaml="theirs"))
        await loop.left()
        assert (await loop.jobs.get(job.id, tenant=None)).state is JobState.RUNNING
        assert theirs.read_text() == "theirs"


async def test_what_is_given_back_waits_again_without_a_loss(making: Making) -> None:
    async with making(FOR_EVER) as loop:
        job = await loop.submit()
        await loop.at_work()
    row = await loop.jobs.get(job.id, tenant=None)
    assert (row.state, row.total_losses, row.fence) == (JobState.QUEUED, 0, 2)
    assert loop.children_are_gone()


async def test_the_lease_is_renewed_and_progress_stands_in_the_row_of_the_process(
    making: Making,
) -> None:
    async with making(FOR_EVER) as loop:
        job = await loop.submit()
        await loop.at_work()
        await asyncio.sleep(2.5)  # leases of a second
        assert await loop.placement.reap() == []
        (process,) = await store.ProcessStore(loop.database).list("edge_builder")
        told = process.load["build"]
        assert (told["job"], told["fence"]) == (str(job.id), 1)
        assert (told["progress"]["stage"], told["progress"]["num_stages_done"]) == ("optimise", 1)
        row = await loop.when(job, lambda row: row.num_tokens == 1)
        assert row.state is JobState.RUNNING


async def test_files_are_swept_when_the_table_has_let_go_of_their_content(making: Making) -> None:
    async with making(DELIVERS) as loop:
        old, young = await loop.submit(), await loop.submit()
        for job in (old, young):
            await loop.until(job, JobState.SUCCEEDED)
        await _age(loop.database, old.id)
        assert (await loop.placement.prune(60)).num_contents == 1
        sweeping = asyncio.create_task(sweep(loop.library, loop.store, SystemClock(), every_s=60))
        async with asyncio.timeout(10):
            while loop.library.jobs() != [young.id]:
                await asyncio.sleep(0.02)
        sweeping.cancel()
        await asyncio.gather(sweeping, return_exceptions=True)


async def _age(database: Database, job_id: UUID) -> None:
    from sqlalchemy import text

    async with database.begin() as connection:
        await connection.execute(
            text("update jobs set ended_at = ended_at - interval '1 hour' where id = :id"), {"id": job_id}
        )
