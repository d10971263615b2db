"""Compares the edge builder's quantiser with Qualcomm's AIMET, and lets AIMET read our encodings: docs/aimet.md.

Usage: python -m benchmarks.aimet [MODEL] [--cut] [--only toy,first,whole,defaults] [--graph FOLDER] [--json FILE]
[--page FILE]

AIMET is installed into an environment of its own. Parts that ``--only`` leaves out are told as they came out last.
The exit code is 0 when every promise holds.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

# Before numpy is imported. Where other things run, two threads of a matrix product mostly wait for each other, and
# that would be what is timed. AIMET's processes inherit it.
os.environ["OMP_NUM_THREADS"] = "1"

from benchmarks.aimet.checks import FIRST, TOY, WHOLE, checks, page
from benchmarks.aimet.environment import FOLDER, TORCH, VERSION, interpreter
from benchmarks.aimet.kept import keep, kept
from benchmarks.aimet.material import Size, first_layers, material, random_model
from benchmarks.aimet.ours import DEFAULTS, in_first_layers, methods
from benchmarks.aimet.parts import SCHEMAS, Aimet, Bench, Extra, Findings, Row, told
from benchmarks.result import Result, report
from benchmarks.serving import demo_model

PARTS = ("toy", "first", "whole", "defaults")
TOY_SIZE = Size(context_length=128, ar=32, num_calibration=8, num_judging=8)
NUM_CANDIDATES, NUM_SEARCH_BATCHES, NUM_ROUNDS, NUM_LAYERS = 20, 4, 2, 4


class Run:
    """One part; ``found`` grows, and is told after every step."""

    def __init__(self, args: argparse.Namespace, python: Path, changed: Callable[[Findings], None]) -> None:
        self._args, self._python, self._changed = args, python, changed
        self._methods = methods(num_candidates=NUM_CANDIDATES, num_search_batches=NUM_SEARCH_BATCHES)
        self.found = Findings()
        own = {name: importlib.metadata.version(name) for name in ("onnxruntime", "onnx", "numpy")}
        self.found.versions = {"aimet-onnx": VERSION, "its torch": TORCH.partition("==")[2], **own}

    def toy(self) -> None:
        """Random weights, both schemas."""
        bench = self._bench(TOY, random_model(FOLDER / "toy-model"), "toy", TOY_SIZE)
        for name, method in self._methods.items():
            self._add(f"{TOY}, {name}", lambda method=method: bench.compare(method, SCHEMAS))

    def first(self) -> None:
        """SeqMSE on the first layers, and how long it takes."""
        model = first_layers(self._model(), NUM_LAYERS, FOLDER / "first-model")
        bench = self._bench(FIRST, model, "first", self._size())
        method = self._methods["SeqMSE"]
        self._add(f"{FIRST}, SeqMSE", lambda: bench.compare(method, SCHEMAS))
        for ours_s, aimet_s in bench.time_search(method, NUM_ROUNDS):
            print(f"SeqMSE: ours {ours_s:.1f} s, AIMET {aimet_s:.1f} s", flush=True)
            self.found.ours_search_s.append(ours_s)
            self.found.aimet_search_s.append(aimet_s)
            self._changed(self.found)

    def whole(self) -> None:
        """All layers, MinMax ranges."""
        bench = self._whole()
        for name in ("W8A16", "LPBQ", "W4A16"):
            self._add(f"{WHOLE}, {name}", lambda name=name: bench.compare(self._methods[name], SCHEMAS[1:]))
        method = in_first_layers(self._methods["SeqMSE"], NUM_LAYERS)
        self._add(f"{WHOLE}, {method.name}", lambda: bench.compare(method, SCHEMAS[1:]))

    def defaults(self) -> None:
        """Our presets on all layers."""
        bench = self._whole()
        for name in DEFAULTS:
            self._add(f"{WHOLE}, {name} by our preset", lambda name=name: bench.default(name))

    def _whole(self) -> Bench:
        return self._bench(WHOLE, self._model(), "whole", self._size(), self._args.graph)

    def _bench(self, name: str, model: Path, folder: str, size: Size, graph: Path | None = None) -> Bench:
        print(f"{name}: graph and batches", flush=True)
        work = FOLDER / "work" / folder
        aimet = Aimet(self._python, work)
        source = material(model, work, size, store=FOLDER / "store", graph=graph)
        return Bench.on(name, source, aimet, work)

    def _add(self, what: str, work: Callable[[], Row | Extra]) -> None:
        done = told(what, work)
        if isinstance(done, Row):
            self.found.rows.append(done)
        else:
            self.found.extras.append(done)
        self._changed(self.found)

    def _model(self) -> Path:
        return self._args.model or demo_model()

    def _size(self) -> Size:
        return Size(context_length=512, ar=128, num_calibration=self._args.calibration, num_judging=self._args.judging)


def figures(found: Findings) -> Iterator[tuple[str, float]]:
    """All numbers by name."""
    for row in found.rows:
        for side, loss in (("ours", row.ours), ("aimet", row.aimet)):
            yield from ((f"{row.graph}/{row.method}/{side}/{k}", v) for k, v in asdict(loss).items())
        yield from ((f"{row.graph}/{row.method}/{side}/s", s) for side, s in row.seconds.items())
        for reading in row.readings:
            where = f"{row.graph}/{row.method}/encodings {reading.schema}"
            yield f"{where}/agreement_db", reading.agreement_db
            yield from ((f"{where}/{k}", v) for k, v in asdict(reading.loss).items())
    for extra in found.extras:
        yield from ((f"{extra.graph}/{extra.method}/{k}", v) for k, v in asdict(extra.loss).items())
    for side, seconds in (("ours", found.ours_search_s), ("aimet", found.aimet_search_s)):
        yield from ((f"SeqMSE/{side}/round {i}/s", s) for i, s in enumerate(seconds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", help="a GGUF file or a directory; default: the demo model")
    parser.add_argument("--cut", action="store_true", help="the random model alone")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--graph", type=Path, help="float graphs of MODEL that a build's stage optimise has made")
    parser.add_argument("--calibration", type=int, default=12, help="windows of 128 tokens, half of them with a past")
    parser.add_argument("--judging", type=int, default=40, help="windows of 128 tokens of other text")
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
    for part in PARTS:
        if part in wanted:
            # After every step, so that a run that is cut short has told something.
            run = Run(args, python, lambda found, part=part: keep(files[part], found))
            getattr(run, part)()
    found = kept([files[part] for part in (wanted if args.cut else PARTS)])
    promised = tuple(checks(found))
    if target is not None:
        target.write_text(page(found, settings, promised), encoding="utf-8")
    result = Result(benchmark="aimet", settings=settings, figures=dict(figures(found)), checks=promised)
    return report(result, args.json)


if __name__ == "__main__":
    sys.exit(main())
