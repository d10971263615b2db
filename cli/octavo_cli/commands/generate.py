"""octavo generate and chat: text from the model. Only the answer goes to stdout; figures go to stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

import octavo
from octavo_cli.answer import Answer
from octavo_cli.context import Context
from octavo_cli.logprobs import logprob_lines
from octavo_cli.output import WrongUse, err, say, show_json, times

_PATIENCE = octavo.RetryPolicy()
_TEXT_FILE = click.File(encoding="utf-8")


def _wrapped(command: Any, options: Sequence[Any]) -> Any:
    for option in options[::-1]:
        command = option(command)
    return command


def _sampling(command: Any) -> Any:
    return _wrapped(
        command,
        (
            click.option("--model", default="", help="Name of a served model; not needed when there is only one."),
            click.option("--max-tokens", type=int, default=512, show_default=True, help="Most tokens of the answer."),
            click.option(
                "--temperature",
                type=float,
                default=0.0,
                show_default=True,
                help="0 takes the likeliest token each time.",
            ),
            click.option("--top-k", type=int, help="Keep the k likeliest tokens."),
            click.option("--top-p", type=float, help="Keep the likeliest tokens that reach this probability."),
            click.option("--min-p", type=float, help="Drop tokens below this part of the likeliest one's probability."),
            click.option("--repetition-penalty", type=float, help="Above 1: tokens that were there come less likely."),
            click.option("--seed", type=int, help="Equal seeds give equal answers."),
            click.option("--stop", multiple=True, help="Text that ends the answer; may be repeated."),
            click.option("--timeout", "timeout_s", type=float, help="Seconds that the job may take."),
        ),
    )


def _answers(command: Any) -> Any:
    return _wrapped(
        command,
        (
            click.option("-n", "n", type=int, default=1, show_default=True, help="How many answers."),
            click.option("--best-of", type=int, help="Generate so many, and show the -n likeliest."),
            click.option("--beams", "beam_width", type=int, help="Search with so many beams instead of sampling."),
            click.option(
                "--logprobs",
                type=int,
                help="Show each token's log-probability, and those of so many of the likeliest in its place.",
            ),
            click.option("--json-schema", type=_TEXT_FILE, help="File with a JSON schema that the answer follows."),
            click.option("--json-object", is_flag=True, help="The answer is a JSON object."),
            click.option("--regex", help="The whole answer matches this."),
            click.option("--choice", multiple=True, help="The answer is one of these; repeat it."),
            click.option("--grammar", type=_TEXT_FILE, help="File with a grammar (GBNF or Lark) that it follows."),
        ),
    )


@click.command()
@click.argument("prompt")
@_sampling
@_answers
@click.option("--ignore-eos", is_flag=True, help="Go on past the end-of-sequence token.")
@click.option("--raw", is_flag=True, help="Without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON at the end.")
@click.pass_obj
def generate(context: Context, prompt: str, raw: bool, as_json: bool, **request: Any) -> None:
    """Answer PROMPT ("-" reads it from stdin). The chat template is applied unless --raw."""
    text = sys.stdin.read() if prompt == "-" else prompt
    if not (text if raw else text.strip()):
        raise WrongUse("the prompt is empty", hint="give a text, or - to read it from stdin")
    source: dict[str, Any] = {"prompt": text} if raw else {"messages": [{"role": "user", "content": text}]}
    for name in ("json_schema", "grammar"):
        request[name] = None if request[name] is None else request[name].read()
    request["choice"] = request["choice"] or None
    # Several would come through each other.
    is_one = request["n"] == 1
    with context.client() as client:
        stream = client.generate(**source, **request)
        result = Answer(stream, quiet=as_json or not is_one, patience_s=_PATIENCE.stream_patience_s).print()
        if as_json:
            show_json({"job_id": stream.job_id, "model": stream.model, "result": result})
            return
        if not is_one:
            _print_all(result)
        elif result.logprobs:
            say(logprob_lines(result.text, result.token_ids, result.logprobs))
        say(_figures(stream.job_id, result))


def _print_all(result: octavo.GenerationResult) -> None:
    """Each answer under a line of its own, which goes to stderr."""
    for number, choice in enumerate(result.choices, 1):
        score = "" if choice.score is None else f", score {choice.score:.3f}"
        say(f"--- {number} of {len(result.choices)} ({choice.finish_reason}{score})")
        click.echo(choice.text)
        if choice.logprobs:
            say(logprob_lines(choice.text, choice.token_ids, choice.logprobs))


@click.command()
@_sampling
@click.option("--system", default="", help="What the model is told first.")
@click.pass_obj
def chat(context: Context, system: str, **request: Any) -> None:
    """Talk with the model, line by line. Ctrl-C stops an answer; an empty line, Ctrl-D or /exit ends."""
    history = [{"role": "system", "content": system}] if system else []
    with context.client() as client:
        while True:
            said = _ask()
            if said in ("", "/exit"):
                return
            history.append({"role": "user", "content": said})
            stream = client.generate(messages=history, **request)
            try:
                result = Answer(stream, quiet=False, patience_s=_PATIENCE.stream_patience_s).print()
                say(_figures(stream.job_id, result))
            except KeyboardInterrupt:
                stream.close()
                say("stopped")
            history.append({"role": "assistant", "content": stream.text})


def _ask() -> str:
    interactive = sys.stdin.isatty()
    if interactive:
        err.print("[bold]> [/bold]", end="")
    try:
        return input().strip()
    except EOFError:
        return ""


def _figures(job_id: str, result: octavo.GenerationResult) -> str:
    usage = result.usage
    first_s, total_s = usage.time_to_first_token_s, usage.total_s
    decode_s = 0.0 if first_s is None or total_s is None else total_s - first_s
    rate = (usage.completion_tokens - 1) / decode_s if usage.completion_tokens > 1 and decode_s > 0 else 0.0
    parts = [
        f"{usage.prompt_tokens} + {usage.completion_tokens} tokens",
        "" if first_s is None else f"first after {first_s * 1000:.0f} ms",
        f"{rate:.1f} tokens/s" if rate else "",
        f"{usage.cached_tokens} cached" if usage.cached_tokens else "",
        f"moved {times(usage.num_losses)}" if usage.num_losses else "",
        "numerics changed" if usage.numerics_changed else "",
        str(result.finish_reason),
        f"seed {usage.seed}",
        f"job {job_id}",
    ]
    return "[" + ", ".join(part for part in parts if part) + "]"
