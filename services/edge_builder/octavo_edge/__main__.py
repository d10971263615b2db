"""The edge builder at the command line: ``python -m octavo_edge build MODEL --target T --out DIR``.

Exit codes: 0 built, 1 failed, 2 the request is wrong, 3 a gate failed, 130 cancelled.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType

from octavo_common.clock import Clock, SystemClock
from octavo_common.errors import Cancelled, OctavoError, Status
from octavo_common.exits import explain
from octavo_edge.needs import require_packages
from octavo_edge.stage import Cancellation

FAILED, WRONG, GATE, CANCELLED = 1, 2, 3, 130
_WRONG_STATUSES = (Status.INVALID_ARGUMENT, Status.NOT_FOUND)
_GATE_CODE = "GATE_FAILED"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    try:
        require_packages()
    except OctavoError as error:
        return explain("octavo-edge", error)
    from octavo_edge.arguments import parser

    options = parser().parse_args(arguments)
    # Read when the libraries are imported, which is later: their bars would tear our lines.
    os.environ.setdefault("TQDM_DISABLE", "1")
    if options.command == "serve":
        return _serve()
    clock, cancellation = SystemClock(), Cancellation()
    try:
        with _stopped_by_signals(cancellation):
            return _COMMANDS[options.command](options, clock, cancellation)
    except OctavoError as error:
        _say(f"octavo-edge: {' '.join(error.message.split())}" + (f" - {error.hint}" if error.hint else ""))
        if isinstance(error, Cancelled):
            return CANCELLED
        if error.code == _GATE_CODE:
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
    from octavo_edge.app import BuildRequest, build
    from octavo_edge.fetching import located
    from octavo_edge.narration import Events, Words, own_stdout
    from octavo_edge.recipe_file import load
    from octavo_edge.target import options_by_target

    narrator = Events(clock, own_stdout()) if options.progress == "json" else Words(clock)
    if options.attended:
        threading.Thread(target=_end_when_left_alone, name="attended", daemon=True).start()
    try:
        request = BuildRequest(
            model=located(options.model, options.data_dir, cancellation, narrator.progress),
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
    except Exception as error:
        narrator.failed(error)
        raise
    failed = tuple(target.name for target in report.targets if target.failed)
    narrator.built(report.outcome, failed)
    _say(f"{report.outcome} in {report.seconds:.1f} s: {options.out / 'report.html'}")
    return FAILED if failed else 0


def _store(options: argparse.Namespace, clock: Clock, cancellation: Cancellation) -> int:
    """List what the store keeps, or remove what was used least recently."""
    from octavo_edge.store import ArtifactStore

    store = ArtifactStore(options.store, clock)
    if store.num_damaged:
        _say(f"removed {store.num_damaged} artifacts that were damaged")
    if options.keep_gb is not None:
        removed = store.collect(int(options.keep_gb * 1e9))
        _say(f"removed {len(removed)} artifacts, {sum(entry.size_bytes for entry in removed) / 1e6:.1f} MB")
    for entry in store.entries():
        sys.stdout.write(f"{entry.digest[:16]}  {entry.size_bytes / 1e6:10.1f} MB  {entry.kind}\n")
    return 0


def _targets(options: argparse.Namespace, clock: Clock, cancellation: Cancellation) -> int:
    """List the targets with their tool-chains, and how far each comes here; as JSON, what each lacks."""
    from octavo_edge.app import TARGETS
    from octavo_edge.narration import own_stdout
    from octavo_edge.target import best_outcome

    with own_stdout() as stream:
        if options.json:
            stream.write(json.dumps({name: make().missing() for name, make in TARGETS.items()}, indent=1) + "\n")
            return 0
        for name, make in TARGETS.items():
            target = make()
            stream.write(f"{name:14} {target.profile.version or '-':12} {best_outcome(target)}\n")
    return 0


def _serve() -> int:
    from octavo_common.starting import start
    from octavo_edge.serving.app import run
    from octavo_edge.serving.settings import EdgeSettings

    return start("octavo-edge", EdgeSettings, run, os.environ)


_COMMANDS: Mapping[str, Callable[[argparse.Namespace, Clock, Cancellation], int]] = {
    "build": _build,
    "store": _store,
    "targets": _targets,
}


def _end_when_left_alone() -> None:
    """Wait until the process that has begun this one is gone, then end with all that was begun here."""
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)


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
