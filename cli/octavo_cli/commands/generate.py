"""octavo generate and chat: text from the model. Only the answer goes to stdout; figures go to stderr."""

from __future__ import annotations

import sys
from typing import Any

import click

import octavo
from octavo_cli.answer import Answer
from octavo_cli.context import Context
from octavo_cli.output import WrongUse, err, say, show_json, times

_PATIENCE = octavo.RetryPolicy()


def _sampling(command: Any) -> Any:
    options = list[Any](
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
            click.option("--seed", type=int, help="Equal seeds give equal answers."),
            click.option("--stop", multiple=True, help="Text that ends the answer; may be repeated."),
            click.option("--timeout", "timeout_s", type=float, help="Seconds that the job may take."),
        )
    )
    wrapped = command
    for option in options[::-1]:
        wrapped = option(wrapped)
    return wrapped


@click.command()
@click.argument("prompt")
@_sampling
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
    with context.client() as client:
        stream = client.generate(**source, **request)
        result = Answer(stream, quiet=as_json, patience_s=_PATIENCE.stream_patience_s).print()
        if as_json:
            show_json({"job_id": stream.job_id, "model": stream.model, "result": result})
        else:
            say(_figures(stream.job_id, result))


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
