"""The runner's commands: ``run DIR`` answers on this device, ``verify DIR`` replays the bundle's test vectors.

Exit codes: 0 done, 1 an output lost too much, 2 it cannot be run; the reason is one line on stderr. 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from octavo_device.bundle import Bundle, read_bundle
from octavo_device.chat import Conversation
from octavo_device.errors import BundleDamaged, DeviceError
from octavo_device.qnn import SIMULATOR
from octavo_device.sampling import Sampling
from octavo_device.verify import GraphResult, limit_db, replay

TOO_FAR, CANNOT, INTERRUPTED = 1, 2, 130
_NUM_NAMED = 5
_AGAIN = "copy the whole bundle again"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return options.command(options)
    except DeviceError as error:
        line = " ".join(error.message.split()) + (f" - {error.hint}" if error.hint else "")
        sys.stderr.write(f"octavo-device: {line}\n")
        return CANNOT
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away; the interpreter would tell of it at its end
        return 0


def _run(options: argparse.Namespace) -> int:
    sampling = Sampling(temperature=options.temperature, top_k=options.top_k, top_p=options.top_p, seed=options.seed)
    conversation = Conversation(
        read_bundle(options.bundle), sampling, raw=options.raw, system=options.system, max_tokens=options.max_tokens
    )
    if options.prompt is not None:
        _tell(conversation, options.prompt)
        return 0
    sys.stderr.write("An empty line or Ctrl-D ends the conversation.\n")
    while True:
        sys.stderr.write("> ")
        sys.stderr.flush()
        line = sys.stdin.readline().strip()
        if not line:
            return 0
        _tell(conversation, line)


def _tell(conversation: Conversation, prompt: str) -> None:
    for piece in conversation.ask(prompt):
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()
    if conversation.finish_reason == "context":
        sys.stderr.write("octavo-device: the context is full, the answer stops here\n")


def _verify(options: argparse.Namespace) -> int:
    bundle = read_bundle(options.bundle)
    if options.simulator:
        bundle = replace(bundle, extra={**bundle.extra, SIMULATOR: True})
    bundle.check_files(contents=True)
    limit = limit_db(bundle) if options.min_db is None else options.min_db
    results: list[GraphResult] = []
    for result in replay(bundle):
        if not result.outputs:
            raise BundleDamaged(f"the vectors of {result.part} for {result.ar} tokens are empty", hint=_AGAIN)
        results.append(result)
        if not options.json:
            _show(result, every=options.all)
    if not results:
        raise BundleDamaged("the bundle has no graph that could be compared", hint=_AGAIN)
    losses = {f"{name} ({r.part}, {r.ar} tokens)": db for r in results for name, db in r.outputs.items()}
    worst = sorted(losses.items(), key=lambda item: item[1])
    passed = worst[0][1] >= limit
    if options.json:
        sys.stdout.write(json.dumps(_document(bundle, results, limit, passed), indent=1) + "\n")
    elif passed:
        sys.stdout.write(f"all {len(losses)} outputs reach {limit:g} dB\n")
    if not passed:
        named = ", ".join(f"{name} {db:.1f} dB" for name, db in worst[:_NUM_NAMED] if db < limit)
        sys.stderr.write(f"octavo-device: below {limit:g} dB: {named}\n")
    return 0 if passed else TOO_FAR


def _show(result: GraphResult, *, every: bool) -> None:
    name, db = result.worst
    shown = result.outputs.items() if every else [(name, db)]
    sys.stdout.write(f"{result.part}, {result.ar} tokens: {len(result.outputs)} outputs, worst {name} {db:.1f} dB\n")
    if every:
        sys.stdout.writelines(f"  {output}: {value:.1f} dB\n" for output, value in shown)
    sys.stdout.flush()


def _document(bundle: Bundle, results: Sequence[GraphResult], limit: float, passed: bool) -> dict[str, object]:
    graphs = [
        {"part": r.part, "ar": r.ar, "sqnr_db": {name: _number(db) for name, db in r.outputs.items()}} for r in results
    ]
    return {"model": bundle.model, "runtime": bundle.runtime, "limit_db": limit, "passed": passed, "graphs": graphs}


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="octavo-device", description="Runs what Octavo's edge builder made.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("bundle", type=Path, metavar="DIR", help="the bundle's directory")

    run = commands.add_parser("run", parents=[shared], help="answer a prompt, or hold a conversation")
    run.add_argument("--prompt", help="one question; without it they are read line by line")
    run.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat's frame")
    run.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    run.add_argument("--max-tokens", type=_positive, metavar="N", help="of each answer; as many as fit if not given")
    run.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest (default)")
    run.add_argument("--top-k", type=int, default=0, metavar="K", help="draw among so many; 0 among all")
    run.add_argument("--top-p", type=float, default=1.0, metavar="P", help="draw among the likeliest of this sum")
    run.add_argument("--seed", type=int, default=0, metavar="S", help="the same seed draws the same answer")
    run.set_defaults(command=_run)

    verify = commands.add_parser("verify", parents=[shared], help="replay the test vectors")
    verify.add_argument("--min-db", type=float, metavar="DB", help="what each output must reach")
    verify.add_argument("--simulator", action="store_true", help="also where the target's device is only simulated")
    verify.add_argument("--all", action="store_true", help="show every output")
    verify.add_argument("--json", action="store_true", help="as JSON")
    verify.set_defaults(command=_verify)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)
