"""What is compared: losses of both on one graph, AIMET's reading of our encodings, and the seconds of both searches."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.aimet.material import Logits, Material
from benchmarks.aimet.ours import (
    Exact,
    Facts,
    Loss,
    Method,
    agreement_db,
    facts,
    loss,
    over_draws,
    quantise,
)

from octavo_device.spec import graph_file

CONFIG = "htp_v79"
SCHEMAS = ("1.0.0", "2.0.0")
_TIMEOUT_S = 3 * 3600


class ChildFailed(RuntimeError):
    """A process ended with an error; the message has its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What AIMET made of an encodings file of ours, run on the texts that judge."""

    schema: str
    by: str  # the function of AIMET's
    agreement_db: float  # with our own graph
    # Of what it loses, to what our own graph does.
    kl_ratio: float
    ppl_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One method on one graph."""

    graph: str
    method: str
    ours: Loss
    aimet: Loss
    seconds: dict[str, float]
    readings: tuple[Reading, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """How long a search took: by the clock, and of all processors together."""

    clock_s: float
    processor_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Of a part when its run began, and at which commit."""

    part: str
    began: str
    commit: str


@dataclass(slots=True, kw_only=True)
class Findings:
    """Everything that a run has found so far."""

    versions: dict[str, str] = field(default_factory=dict)
    origins: list[Origin] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    # Of each round, alternating.
    ours_search: list[Seconds] = field(default_factory=list)
    aimet_search: list[Seconds] = field(default_factory=list)


class Child:
    """Runs tasks in processes of their own: AIMET's in its environment, or our search."""

    def __init__(self, argv: Sequence[str], work: Path, *, num_threads: int = 1) -> None:
        """``num_threads`` are for matrix products."""
        self._argv, self._work, self._num_threads = argv, work, num_threads

    def __call__(self, **task: Any) -> dict[str, Any]:
        """The answer; raises ChildFailed."""
        self._work.mkdir(parents=True, exist_ok=True)
        question, answer, log = (self._work / name for name in ("task.json", "answer.json", "child.log"))
        question.write_text(json.dumps(task), encoding="utf-8")
        with log.open("a", encoding="utf-8") as output:
            done = subprocess.run(
                [*self._argv, str(question), str(answer)],
                stdout=output,
                stderr=output,
                env={**self._environment(), "OMP_NUM_THREADS": str(self._num_threads)},
                timeout=_TIMEOUT_S,
                check=False,
            )
        if done.returncode:
            words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise ChildFailed(f"{self._argv[-1]} ended with {done.returncode}: {words[-1] if words else ''}")
        return json.loads(answer.read_text(encoding="utf-8"))

    def _environment(self) -> dict[str, str]:
        # AIMET's own packages alone: what this process finds on PYTHONPATH is made for another environment.
        own = self._argv[0] == sys.executable
        return {name: value for name, value in os.environ.items() if own or name != "PYTHONPATH"}


def aimet(python: Path, work: Path, *, num_threads: int = 1) -> Child:
    """Runs what child.py can."""
    return Child([str(python), str(Path(__file__).with_name("child.py"))], work, num_threads=num_threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One float graph on which both are compared."""

    graph: str  # its name in the tables
    source: Material
    exact: Exact
    facts: Facts
    aimet: Child
    work: Path

    @classmethod
    def on(cls, graph: str, source: Material, aimet: Child, work: Path) -> Bench:
        """Runs the float graph on the texts that judge."""
        return cls(
            graph=graph,
            source=source,
            exact=Exact.of(source, work / "exact"),
            facts=facts(source),
            aimet=aimet,
            work=work / "graphs",
        )

    def compare(self, method: Method, schemas: Sequence[str]) -> Row:
        """Quantise with both, and let AIMET read our encodings of the schemas."""
        out = self._empty("ours")
        ours_s = quantise(self.source, method.recipe, out, num_layers=method.num_layers)
        mine = self.source.logits(out / graph_file(self.source.spec.ars[0]), self._empty("mine"))
        ours = loss(self.source, self.exact, mine)
        answer, theirs = self.theirs(method)
        readings = tuple(self._read(method, out, schema, mine, ours) for schema in schemas)
        shutil.rmtree(self.work)
        return Row(
            graph=self.graph,
            method=method.name,
            ours=ours,
            aimet=theirs,
            seconds={"ours": ours_s, "aimet": answer["search_s"] + answer["calibrate_s"]},
            readings=readings,
        )

    def compare_often(self, method: Method, schemas: Sequence[str], num_draws: int, num_calibration: int) -> Row:
        """The mean over searches with other windows each time; encodings are read of the first."""
        rows: list[Row] = []
        for draw in range(num_draws):
            source = self.source.beginning_with(draw * method.num_search_batches, num_calibration)
            rows.append(replace(self, source=source).compare(method, schemas if draw == 0 else ()))
            print(
                f"  draw {draw}: perplexity, ours to AIMET's, {rows[-1].ours.ppl / rows[-1].aimet.ppl:.4f}", flush=True
            )
        return replace(
            rows[0],
            method=f"{method.name}, {num_draws} times",
            ours=over_draws([row.ours for row in rows]),
            aimet=over_draws([row.aimet for row in rows]),
        )

    def theirs(self, method: Method) -> tuple[dict[str, Any], Loss]:
        """AIMET's answer, and what its graph loses."""
        out = self._empty("aimet")
        answer = self.aimet(
            op="quantise",
            calibration=[str(folder.resolve()) for folder in self.source.folders],
            out=str(out.resolve()),
            num_candidates=method.num_candidates,
            num_search_batches=method.num_search_batches,
            **simulator(self.source, self.facts, method),
        )
        return answer, loss(self.source, self.exact, self.source.logits(out / "qdq.onnx", self._empty("theirs")))

    def _read(self, method: Method, folder: Path, schema: str, mine: Logits, ours: Loss) -> Reading:
        out = self._empty("read")
        encodings = str((folder / f"{schema}.encodings").resolve())
        graph = str(self.source.graph.resolve())
        # AIMET's converter cannot take LPBQ of 1.0.0, also of its own files; its simulator can.
        if method.block_size and schema == "1.0.0":
            by = "load_encodings_to_sim"
            self.aimet(
                op="load", encodings=encodings, out=str(out.resolve()), **simulator(self.source, self.facts, method)
            )
        else:
            by = "encodings_to_onnx_qdq"
            self.aimet(op="convert", graph=graph, encodings=encodings, out=str(out.resolve()))
        got = self.source.logits(out / "qdq.onnx", self._empty("got"))
        lost = loss(self.source, self.exact, got)
        return Reading(
            schema=schema,
            by=by,
            agreement_db=agreement_db(mine, got),
            kl_ratio=lost.mean_kl_nats / ours.mean_kl_nats,
            ppl_ratio=lost.ppl / ours.ppl,
        )

    def _empty(self, name: str) -> Path:
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder


def simulator(source: Material, known: Facts, method: Method) -> dict[str, Any]:
    """What a simulator of AIMET's is made of."""
    return {
        "graph": str(source.graph.resolve()),
        "weight_bits": method.weight_bits,
        "wide": known.wide(method),
        "floats": known.floats,
        "block_size": method.block_size,
        "config": CONFIG,
    }


def time_searches(
    source: Material, python: Path, method: Method, work: Path, num_rounds: int
) -> Iterator[tuple[Seconds, Seconds]]:
    """Ours and AIMET's search, in turns, on the same batches, each with the threads of all processors."""
    num_threads = os.cpu_count() or 1
    ours = Child([sys.executable, "-m", "benchmarks.aimet.search"], work, num_threads=num_threads)
    theirs = aimet(python, work, num_threads=num_threads)
    same = {
        "calibration": [str(folder.resolve()) for folder in source.folders[: method.num_search_batches]],
        "num_candidates": method.num_candidates,
    }
    made = simulator(source, facts(source), method)
    for _ in range(num_rounds):
        answers = ours(folder=str(source.folder.resolve()), **same), theirs(op="search", **same, **made)
        mine, other = (Seconds(clock_s=a["clock_s"], processor_s=a["processor_s"]) for a in answers)
        yield mine, other


def told(what: str, work: Callable[[], Row]) -> Row:
    """Do something and print how it came out."""
    started = time.monotonic()
    found = work()
    ours, theirs = found.ours, found.aimet
    print(f"{what}: ours KL {ours.mean_kl_nats:.4f}, perplexity x{ours.ppl_ratio:.4f}, {ours.sqnr_db:.2f} dB", end="")
    print(f"; AIMET {theirs.mean_kl_nats:.4f}, x{theirs.ppl_ratio:.4f}, {theirs.sqnr_db:.2f} dB", end="")
    for reading in found.readings:
        print(f"; {reading.schema} {reading.agreement_db:.1f} dB KL x{reading.kl_ratio:.4f}", end="")
    print(f" ({time.monotonic() - started:.0f} s)", flush=True)
    return found
