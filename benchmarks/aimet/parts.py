"""What is compared: losses of both on one graph, AIMET's reading of our encodings, and the seconds of both searches."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.aimet.material import Logits, Material
from benchmarks.aimet.ours import DEFAULTS, Facts, Loss, Method, agreement_db, facts, loss, quantise, search_alone

from octavo_device.spec import graph_file

CONFIG = "htp_v79"
SCHEMAS = ("1.0.0", "2.0.0")
_TIMEOUT_S = 3 * 3600


class AimetFailed(RuntimeError):
    """AIMET ended with an error; the message has its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What AIMET made of an encodings file of ours, run on the texts that judge."""

    schema: str
    by: str  # the function of AIMET's
    agreement_db: float  # with our own graph
    loss: Loss


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
class Extra:
    """A recipe of ours that AIMET has no equal of."""

    graph: str
    method: str
    loss: Loss


@dataclass(slots=True, kw_only=True)
class Findings:
    """Everything that a run has found so far."""

    versions: dict[str, str] = field(default_factory=dict)
    # Of each part when it ran, and at which commit.
    origins: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    extras: list[Extra] = field(default_factory=list)
    # Seconds of processor time of each round, alternating.
    ours_search_s: list[float] = field(default_factory=list)
    aimet_search_s: list[float] = field(default_factory=list)


class Aimet:
    """Runs tasks in AIMET's environment, each in a process of its own."""

    def __init__(self, python: Path, work: Path) -> None:
        self._python, self._work = python, work

    def __call__(self, **task: Any) -> dict[str, Any]:
        """The answer; raises AimetFailed."""
        self._work.mkdir(parents=True, exist_ok=True)
        question, answer, log = (self._work / name for name in ("task.json", "answer.json", "aimet.log"))
        question.write_text(json.dumps(task), encoding="utf-8")
        argv = [str(self._python), str(Path(__file__).with_name("child.py")), str(question), str(answer)]
        # Its own packages alone: what this process finds on PYTHONPATH is made for another environment.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with log.open("a", encoding="utf-8") as output:
            done = subprocess.run(argv, stdout=output, stderr=output, env=env, timeout=_TIMEOUT_S, check=False)
        if done.returncode:
            words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise AimetFailed(f"{task['op']} ended with {done.returncode}: {words[-1] if words else ''}")
        return json.loads(answer.read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """One float graph on which both are compared."""

    graph: str  # its name in the tables
    source: Material
    exact: Logits  # of the float graph
    facts: Facts
    aimet: Aimet
    work: Path

    @classmethod
    def on(cls, graph: str, source: Material, aimet: Aimet, work: Path) -> Bench:
        """Runs the float graph on the texts that judge."""
        return cls(
            graph=graph,
            source=source,
            exact=source.logits(source.graph),
            facts=facts(source),
            aimet=aimet,
            work=work / "graphs",
        )

    def compare(self, method: Method, schemas: Sequence[str]) -> Row:
        """Quantise with both, and let AIMET read our encodings of the schemas."""
        out = self._empty("ours")
        ours_s = quantise(self.source, method.recipe, out, num_layers=method.num_layers)
        mine = self.source.logits(out / graph_file(self.source.spec.ars[0]))
        answer, theirs = self.theirs(method)
        readings = tuple(self._read(method, out, schema, mine) for schema in schemas)
        shutil.rmtree(self.work)
        return Row(
            graph=self.graph,
            method=method.name,
            ours=loss(self.source, self.exact, mine),
            aimet=theirs,
            seconds={"ours": ours_s, "aimet": answer["search_s"] + answer["calibrate_s"]},
            readings=readings,
        )

    def default(self, name: str) -> Extra:
        """Our own preset."""
        out = self._empty("default")
        quantise(self.source, DEFAULTS[name], out)
        got = self.source.logits(out / graph_file(self.source.spec.ars[0]))
        shutil.rmtree(self.work)
        return Extra(graph=self.graph, method=f"{name}, our preset", loss=loss(self.source, self.exact, got))

    def theirs(self, method: Method) -> tuple[dict[str, Any], Loss]:
        """AIMET's answer, and what its graph loses."""
        out = self._empty("aimet")
        answer = self.quantise_theirs(method, out)
        return answer, loss(self.source, self.exact, self.source.logits(out / "qdq.onnx"))

    def quantise_theirs(self, method: Method, out: Path, *, num_batches: int | None = None) -> dict[str, Any]:
        """AIMET's graph into ``out``, and its answer."""
        return self.aimet(
            op="quantise",
            calibration=[str(folder.resolve()) for folder in self.source.folders[:num_batches]],
            out=str(out.resolve()),
            num_candidates=method.num_candidates,
            num_search_batches=method.num_search_batches,
            **self._simulator(method),
        )

    def time_search(self, method: Method, num_rounds: int) -> Iterator[tuple[float, float]]:
        """Seconds of processor time that ours and AIMET's search take, in turns, on the same batches.

        By the clock it would be told what else runs on the machine.
        """
        recipe, num_batches = search_alone(method.recipe), method.num_search_batches
        for _ in range(num_rounds):
            started = time.process_time()
            quantise(self.source, recipe, self._empty("ours"), num_batches=num_batches)
            ours_s = time.process_time() - started
            answer = self.quantise_theirs(method, self._empty("aimet"), num_batches=num_batches)
            yield ours_s, float(answer["search_cpu_s"])
        shutil.rmtree(self.work)

    def _read(self, method: Method, ours: Path, schema: str, mine: Logits) -> Reading:
        out = self._empty("read")
        encodings = str((ours / f"{schema}.encodings").resolve())
        graph = str(self.source.graph.resolve())
        # AIMET's converter cannot take LPBQ of 1.0.0, also of its own files; its simulator can.
        if method.block_size and schema == "1.0.0":
            by = "load_encodings_to_sim"
            self.aimet(op="load", encodings=encodings, out=str(out.resolve()), **self._simulator(method))
        else:
            by = "encodings_to_onnx_qdq"
            self.aimet(op="convert", graph=graph, encodings=encodings, out=str(out.resolve()))
        got = self.source.logits(out / "qdq.onnx")
        return Reading(
            schema=schema, by=by, agreement_db=agreement_db(mine, got), loss=loss(self.source, self.exact, got)
        )

    def _simulator(self, method: Method) -> dict[str, Any]:
        return {
            "graph": str(self.source.graph.resolve()),
            "weight_bits": method.weight_bits,
            "wide": self.facts.wide(method),
            "floats": self.facts.floats,
            "block_size": method.block_size,
            "config": CONFIG,
        }

    def _empty(self, name: str) -> Path:
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder


def told(what: str, work: Callable[[], Row | Extra]) -> Row | Extra:
    """Do something and print how it came out."""
    started = time.monotonic()
    found = work()
    ours = found.ours if isinstance(found, Row) else found.loss
    print(f"{what}: ours KL {ours.mean_kl_nats:.4f}, perplexity x{ours.ppl_ratio:.4f}, {ours.sqnr_db:.2f} dB", end="")
    if isinstance(found, Row):
        theirs = found.aimet
        print(f"; AIMET {theirs.mean_kl_nats:.4f}, x{theirs.ppl_ratio:.4f}, {theirs.sqnr_db:.2f} dB", end="")
        for reading in found.readings:
            print(f"; {reading.schema} {reading.agreement_db:.1f} dB KL {reading.loss.mean_kl_nats:.4f}", end="")
    print(f" ({time.monotonic() - started:.0f} s)", flush=True)
    return found
