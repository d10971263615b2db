"""Compares the edge builder's quantiser with Qualcomm's AIMET, and lets AIMET read our encodings: docs/aimet.md.

Usage: python -m benchmarks.aimet [MODEL] [--cut] [--only search,toy,first,whole] [--graph FOLDER]
[--json FILE] [--page FILE]

AIMET is installed into an environment of its own. Parts that ``--only`` leaves out are told as they came out last.
The exit code is 0 when every promise holds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

# Before numpy is imported: where other things run, threads of a matrix product mostly wait for each other.
os.environ["OMP_NUM_THREADS"] = "1"

from benchmarks.aimet.checks import FIRST, TOY, WHOLE, checks, page
from benchmarks.aimet.environment import FOLDER, TORCH, VERSION, interpreter
from benchmarks.aimet.kept import keep, kept
from benchmarks.aimet.material import Material, Size, first_layers, material, random_model
from benchmarks.aimet.ours import Loss, in_first_layers, methods
from benchmarks.aimet.parts import SCHEMAS, Bench, Findings, Origin, Row, aimet, time_searches, told
from benchmarks.result import Result, commit, report
from benchmarks.serving import demo_model

PARTS = ("search", "toy", "first", "whole")
TOY_SIZE = Size(context_length=128, ar=32, num_calibration=8, num_judging=8)
NUM_CANDIDATES, NUM_SEARCH_BATCHES, NUM_ROUNDS, NUM_LAYERS = 20, 4, 3, 4
# Of the first layers by themselves, each with other windows: they predict next to nothing, so that which of two equally
# good scales a channel has moves their perplexity by a percent or two.
NUM_DRAWS = 12


class Run:
    """One part; ``found`` grows, and is told after every step."""

    def __init__(
        self, args: argparse.Namespace, python: Path, origin: Origin, changed: Callable[[Findings], None]
    ) -> None:
        self._args, self._python, self._changed = args, python, changed
        self._methods = methods(num_candidates=NUM_CANDIDATES, num_search_batches=NUM_SEARCH_BATCHES)
        self.found = Findings(origins=[origin])
        own = {name: importlib.metadata.version(name) for name in ("onnxruntime", "onnx", "numpy")}
        self.found.versions = {"aimet-onnx": VERSION, "its torch": TORCH.partition("==")[2], **own}

    def toy(self) -> None:
        """Random weights, both schemas."""
        bench = self._bench(TOY, random_model(FOLDER / "toy-model"), "toy", TOY_SIZE)
        for name, method in self._methods.items():
            self._add(f"{TOY}, {name}", lambda method=method: bench.compare(method, SCHEMAS))

    def search(self) -> None:
        """How long SeqMSE takes."""
        source = self._material(self._first_model(), "search", self._size(num_judging=1))
        work = FOLDER / "work" / "search"
        for ours, theirs in time_searches(source, self._python, self._methods["SeqMSE"], work, NUM_ROUNDS):
            print(
                f"SeqMSE by the clock: ours {ours.clock_s:.1f} s, AIMET {theirs.clock_s:.1f} s; "
                f"of processors: {ours.processor_s:.1f} s, {theirs.processor_s:.1f} s",
                flush=True,
            )
            self.found.ours_search.append(ours)
            self.found.aimet_search.append(theirs)
            self._changed(self.found)

    def first(self) -> None:
        """SeqMSE on the first layers."""
        method, size = self._methods["SeqMSE"], self._size(self._args.judging)
        enough = replace(size, num_calibration=NUM_DRAWS * method.num_search_batches)
        bench = self._bench(FIRST, self._first_model(), "first", enough)
        self._add(
            f"{FIRST}, {method.name}",
            lambda: bench.compare_often(method, SCHEMAS, NUM_DRAWS, size.num_calibration),
        )

    def whole(self) -> None:
        """All layers, MinMax ranges."""
        bench = self._bench(WHOLE, self._model(), "whole", self._size(self._args.judging), self._args.graph)
        for name in ("W8A16", "LPBQ", "W4A16"):
            self._add(f"{WHOLE}, {name}", lambda name=name: bench.compare(self._methods[name], SCHEMAS[1:]))
        method = in_first_layers(self._methods["SeqMSE"], NUM_LAYERS)
        self._add(f"{WHOLE}, {method.name}", lambda: bench.compare(method, SCHEMAS[1:]))

    def _bench(self, name: str, model: Path, part: str, size: Size, graph: Path | None = None) -> Bench:
        source = self._material(model, part, size, graph)
        work = FOLDER / "work" / part
        return Bench.on(name, source, aimet(self._python, work), work)

    def _material(self, model: Path, part: str, size: Size, graph: Path | None = None) -> Material:
        print(f"{part}: graph and batches", flush=True)
        return material(model, FOLDER / "work" / part, size, store=FOLDER / "store", graph=graph)

    def _add(self, what: str, work: Callable[[], Row]) -> None:
        self.found.rows.append(told(what, work))
        self._changed(self.found)

    def _model(self) -> Path:
        return self._args.model or demo_model()

    def _first_model(self) -> Path:
        return first_layers(self._model(), NUM_LAYERS, FOLDER / "first-model")

    def _size(self, num_judging: int) -> Size:
        return Size(context_length=512, ar=128, num_calibration=self._args.calibration, num_judging=num_judging)


def figures(found: Findings) -> Iterator[tuple[str, float]]:
    """All numbers by name."""
    for row in found.rows:
        for side, loss in (("ours", row.ours), ("aimet", row.aimet)):
            yield from _of_loss(f"{row.graph}/{row.method}/{side}", loss)
        yield from ((f"{row.graph}/{row.method}/{side}/s", s) for side, s in row.seconds.items())
        for reading in row.readings:
            where = f"{row.graph}/{row.method}/encodings {reading.schema}"
            yield from ((f"{where}/{k}", v) for k, v in asdict(reading).items() if isinstance(v, float))
    for side, rounds in (("ours", found.ours_search), ("aimet", found.aimet_search)):
        for index, seconds in enumerate(rounds):
            yield from ((f"SeqMSE/{side}/round {index}/{k}", v) for k, v in asdict(seconds).items())


def _of_loss(where: str, loss: Loss) -> Iterator[tuple[str, float]]:
    return ((f"{where}/{k}", v) for k, v in asdict(loss).items() if k != "nll_nats")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file or a directory; default: the demo model")
    parser.add_argument("--cut", action="store_true", help="the random model alone")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--graph", type=Path, help="float graphs of MODEL that a build's stage optimise has made")
    parser.add_argument("--calibration", type=int, default=12, help="windows of 128 tokens, half of them with a past")
    parser.add_argument("--judging", type=int, default=24, help="windows of 128 tokens of other text")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path, help="for the tables; default: docs/aimet.md, none with --cut")
    args = parser.parse_args()
    wanted = ["toy"] if args.cut else args.only.split(",")
    if unknown := set(wanted) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; parts are {', '.join(PARTS)}")
    settings: dict[str, object] = {
        "windows of text to calibrate with": args.calibration,
        "other ones to judge by (real weights)": args.judging,
        "of each with random weights": TOY_SIZE.num_calibration,
        "candidates of SeqMSE": NUM_CANDIDATES,
        "windows for it": NUM_SEARCH_BATCHES,
    }
    target = args.page or (None if args.cut else FOLDER.parent.parent / "docs" / "aimet.md")

    files = {part: FOLDER / "found" / f"{part}.json" for part in PARTS}
    if set(wanted) == set(PARTS):
        for file in files.values():
            file.unlink(missing_ok=True)
    python = interpreter()
    began, at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", commit()
    for part in PARTS:
        if part in wanted:
            # After every step, so that a run that is cut short has told something.
            origin = Origin(part=part, began=began, commit=at)
            run = Run(args, python, origin, lambda found, part=part: keep(files[part], found))
            getattr(run, part)()
            shutil.rmtree(FOLDER / "work" / part)
    found = kept([files[part] for part in (wanted if args.cut else PARTS)])
    promised = tuple(checks(found))
    if target is not None:
        target.write_text(page(found, settings, promised), encoding="utf-8")
    result = Result(benchmark="aimet", settings=settings, figures=dict(figures(found)), checks=promised)
    return report(result, args.json)


if __name__ == "__main__":
    sys.exit(main())
