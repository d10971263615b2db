"""The edge builder at the command line: ``python -m octavo_edge build MODEL --target T --out DIR``.

Exit codes: 0 built, 1 failed, 2 the request is wrong, 3 a gate failed, 130 cancelled.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from octavo_common.clock import Clock, SystemClock
from octavo_common.errors import Cancelled, OctavoError, Status
from octavo_edge.app import TARGETS, BuildRequest, build
from octavo_edge.pipeline import GateFailed, StageRun
from octavo_edge.recipe import PRESETS
from octavo_edge.recipe_file import load
from octavo_edge.stage import Cancellation, Progress
from octavo_edge.store import ArtifactStore
from octavo_edge.target import options_by_target

FAILED, WRONG, GATE, CANCELLED = 1, 2, 3, 130
_WRONG_STATUSES = (Status.INVALID_ARGUMENT, Status.NOT_FOUND)
_EVERY_S = 2.0


class Narrator:
    """Tells of progress on stderr: a stage's begin and end always, its steps every two seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._told_s, self._stage = clock, 0.0, ""

    def progress(self, progress: Progress) -> None:
        """Tell of a step, if the last line is old enough or of another stage."""
        now_s = self._clock.monotonic()
        if progress.stage != self._stage or now_s - self._told_s >= _EVERY_S:
            self._told_s, self._stage = now_s, progress.stage
            what = f" {progress.what}" if progress.what else ""
            _say(f"{progress.stage}: {progress.done}/{progress.total}{what}")

    def stage(self, run: StageRun) -> None:
        """Tell that a stage ended."""
        report = run.report
        how = "as before" if run.cached else f"{report.seconds:.1f} s, {report.peak_rss_bytes / 1e6:.0f} MB of memory"
        _say(f"{report.stage}: done, {report.size_bytes / 1e6:.1f} MB ({how})")
        for warning in report.outcome.warnings:
            _say(f"{report.stage}: warning: {warning}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _parser().parse_args(arguments)
    # Read when the libraries are imported, which is later: their bars would tear our lines.
    os.environ.setdefault("TQDM_DISABLE", "1")
    clock, cancellation = SystemClock(), Cancellation()
    try:
        with _stopped_by_signals(cancellation):
            return options.command(options, clock, cancellation)
    except OctavoError as error:
        _say(f"octavo-edge: {' '.join(error.message.split())}" + (f" - {error.hint}" if error.hint else ""))
        if isinstance(error, Cancelled):
            return CANCELLED
        if isinstance(error, GateFailed):
            return GATE
        return WRONG if error.status in _WRONG_STATUSES else FAILED
    except MemoryError:
        _say("octavo-edge: there is not enough memory on this machine for this model")
        return FAILED
    except Exception as error:
        if options.debug:
            raise
        _say(f"octavo-edge: a fault of the builder: {type(error).__name__}: {' '.join(str(error).split())}")
        _say("octavo-edge: with --debug the same command shows where")
        return FAILED


def _build(options: argparse.Namespace, clock: Clock, cancellation: Cancellation) -> int:
    narrator = Narrator(clock)
    request = BuildRequest(
        model=options.model,
        targets=options.target,
        target_options=options_by_target(options.target, options.target_option),
        attention=options.attention,
        num_parts=options.parts,
        passes=options.passes,
        recipe=load(options.recipe),
        context_length=options.context_length,
        ars=options.ar,
        out=options.out,
        store=options.store,
    )
    report = build(
        request, clock=clock, cancellation=cancellation, on_progress=narrator.progress, on_stage=narrator.stage
    )
    _say(f"{report.outcome} in {report.seconds:.1f} s: {options.out / 'report.html'}")
    return FAILED if any(target.failed for target in report.targets) else 0


def _store(options: argparse.Namespace, clock: Clock, cancellation: Cancellation) -> int:
    """List what the store keeps, or remove what was used least recently."""
    store = ArtifactStore(options.store, clock)
    if options.keep_gb is not None:
        removed = store.collect(int(options.keep_gb * 1e9))
        _say(f"removed {len(removed)} artifacts, {sum(entry.size_bytes for entry in removed) / 1e6:.1f} MB")
    for entry in store.entries():
        sys.stdout.write(f"{entry.digest[:16]}  {entry.size_bytes / 1e6:10.1f} MB  {entry.kind}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="octavo-edge", description="Builds models for devices.")
    parser.add_argument("--debug", action="store_true", help="show where a fault of the builder is")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--store", type=Path, default=Path(".octavo/edge"), help="where artifacts are kept")

    make = commands.add_parser("build", parents=[shared], help="build a model for a target")
    make.add_argument("model", type=Path, help="a Hugging Face directory or a .gguf file")
    make.add_argument(
        "--target", type=_names, required=True, metavar="T,T", help=f"one or more of: {', '.join(TARGETS)}"
    )
    make.add_argument(
        "--target-option",
        action="append",
        default=[],
        metavar="[T.]KEY=VALUE",
        help="for the target's tool-chain; with several targets T.KEY says for which. May be given more than once",
    )
    make.add_argument("--recipe", default="w8a16", help=f"a YAML file, or one of: {', '.join(PRESETS)}")
    make.add_argument("--context-length", type=int, default=512, metavar="TOKENS")
    make.add_argument("--ar", type=_numbers, default=(128, 1), help="new tokens of each graph: 128,1", metavar="N,N")
    make.add_argument("--attention", choices=("mha", "sha"), default="mha", help="heads together, or each by itself")
    make.add_argument("--parts", type=int, default=1, metavar="N", help="pieces that the layers are cut into")
    make.add_argument(
        "--passes", type=_names, metavar="NAME,NAME", help="rewrites of the graphs; all usual ones if not given"
    )
    make.add_argument("--out", type=Path, required=True, metavar="DIR", help="where the build goes")
    make.set_defaults(command=_build)

    store = commands.add_parser("store", parents=[shared], help="list the artifacts that are kept")
    store.add_argument("--keep-gb", type=float, metavar="GB", help="remove the least recently used beyond that")
    store.set_defaults(command=_store)
    return parser


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for part in text.split(",") if (name := part.strip())))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted((int(part) for part in text.split(",")), reverse=True))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers such as 128,1") from None


@contextmanager
def _stopped_by_signals(cancellation: Cancellation) -> Iterator[None]:
    """The first Ctrl-C stops the build at its next step, the second one at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        cancellation.ask()
        _say("octavo-edge: stopping at the next step; once more stops at once")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
