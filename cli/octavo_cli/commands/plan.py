"""octavo plan: what a model needs of a device, and what it can give at most. Asks no platform and no network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from octavo_cli.context import Context
from octavo_cli.output import WrongUse, err, say, show_json, show_table
from octavo_common.models.fetch import UnknownModel, find
from octavo_common.models.shapes import PlannedModel, read_model
from octavo_common.plan.answer import plan_json
from octavo_common.plan.devices import DEVICES, Device, find_device
from octavo_common.plan.formats import KV_FORMATS, WEIGHT_FORMATS, Arithmetic, default_kv, kv_format, weight_format
from octavo_common.plan.report import DEFAULT_RESERVE, Plan, Question, make_plan
from octavo_common.plan.roofline import StepCost
from octavo_common.plan.shapes import SHAPES

CPU = "cpu"
_DEFAULT_DEVICE = "H200"
_OWN_FIGURES = "own figures"
_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@click.command()
@click.argument("model", default="", required=False)
@click.option(
    "--device", default="", help=f"A name of --known, or cpu: this machine, measured [default: {_DEFAULT_DEVICE}]."
)
@click.option(
    "--precision", default="", help="How weights are stored, see --known [default: as the model's files are]."
)
@click.option(
    "--kv",
    default="",
    help="How keys and values are stored, see --known [default: bfloat16; float32 or int8 beside such weights].",
)
@click.option("--prompt", "num_prompt", default=1024, show_default=True, help="Tokens of a prompt.")
@click.option("--output", "num_output", default=256, show_default=True, help="Tokens of an answer.")
@click.option("--batch", default=1, show_default=True, help="Sequences in a step.")
@click.option("--tensor-parallel", default=1, show_default=True, help="Devices that share the model.")
@click.option(
    "--reserve", default=DEFAULT_RESERVE, show_default=True, help="Part of the memory that is left to others."
)
@click.option("--memory-gb", type=float, help="The device's memory, instead of the table's or the measured one.")
@click.option("--bandwidth-gb", type=float, help="Its memory bandwidth, in GB/s.")
@click.option("--peak-tflops", type=float, help="Its arithmetic, in T operations/s, whatever the precision.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), help="Write the roofline to this SVG file.")
@click.option("--known", is_flag=True, help="List the devices, models, precisions and KV formats known by name.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def plan(context: Context, model: str, plot: Path | None, known: bool, as_json: bool, **options: Any) -> None:
    """What MODEL needs of a device: memory, sequences that fit, and the least time of its steps.

    MODEL is a directory, a GGUF file, a model of `octavo models list`, or a name of --known. Times are floors and rates
    ceilings: docs/plan.md has the formulae.
    """
    if known:
        _show_known(as_json)
        return
    if not model:
        raise WrongUse("no model is named", hint="give a path or a name; `octavo plan --known` lists names")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise WrongUse(f"{plot} is no SVG file", hint="give a name that ends in .svg; every browser shows those")
    made = make_plan(_question(_model(context, model), **options))
    if plot is not None:
        from octavo_cli.roofline import roofline_svg

        plot.write_text(roofline_svg(made), encoding="utf-8")
        say(f"the roofline is in {plot}")
    if not options["device"] and made.question.device.name != _OWN_FIGURES:
        say(f"no device was named: {_DEFAULT_DEVICE} is assumed; --device takes another, or cpu for this machine")
    if as_json:
        show_json(plan_json(made))
    else:
        _show(made)


def _question(
    model: PlannedModel,
    *,
    device: str,
    precision: str,
    kv: str,
    num_prompt: int,
    num_output: int,
    batch: int,
    tensor_parallel: int,
    reserve: float,
    memory_gb: float | None,
    bandwidth_gb: float | None,
    peak_tflops: float | None,
) -> Question:
    """What the options ask."""
    stored = weight_format(precision) if precision else model.stored
    return Question(
        shape=model.shape,
        device=_device(device, memory_gb, bandwidth_gb, peak_tflops),
        stored=stored,
        kv=kv_format(kv) if kv else default_kv(stored),
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        batch=batch,
        tensor_parallel=tensor_parallel,
        reserve=reserve,
        weights=None if precision else model.weights,
    )


def _model(context: Context, name: str) -> PlannedModel:
    """By path, by the name of a fetched model, or by the name of a shape; raises UnknownModel, UnreadableModel."""
    shape = SHAPES.get(name.lower())
    try:
        files = find(name, data_dir=context.data_dir.root)
    except UnknownModel as error:
        if shape is None:
            raise UnknownModel(
                error.message, hint="give a path, or a name: `octavo plan --known` and `octavo models list` show them"
            ) from error
        files = None
    if files is not None:
        return read_model(files.path, files.name)
    if shape is None:
        raise UnknownModel(
            f"the model {name!r} is not here", hint=f"fetch it with `{context.line('models', 'pull', name)}`"
        )
    return PlannedModel(shape=shape, stored=weight_format("bfloat16"))


def _device(name: str, memory_gb: float | None, bandwidth_gb: float | None, peak_tflops: float | None) -> Device:
    """A device of the table or this machine, with what was given in place of its own figures."""
    if None not in (memory_gb, bandwidth_gb, peak_tflops):
        device = Device(name=name or _OWN_FIGURES, memory_bytes=1.0, bandwidth=1.0, peaks={Arithmetic.FLOAT32: 1.0})
    elif name.lower() == CPU:
        from octavo_cli.machine import measure
        from octavo_common.clock import SystemClock

        with err.status("measuring this machine"):
            device = measure(SystemClock())
    else:
        device = find_device(name or _DEFAULT_DEVICE)
    if memory_gb is not None:
        device = replace(device, memory_bytes=memory_gb * 1e9)
    if bandwidth_gb is not None:
        device = replace(device, bandwidth=bandwidth_gb * 1e9)
    if peak_tflops is not None:
        device = replace(device, peaks=dict.fromkeys(Arithmetic, peak_tflops * 1e12))
    return device


def _show(plan: Plan) -> None:
    question, memory = plan.question, plan.memory
    shape, length = question.shape, question.num_prompt_tokens + question.num_output_tokens
    devices = (
        f"{question.tensor_parallel} x {question.device.name}" if question.tensor_parallel > 1 else question.device.name
    )
    each = " on each" if question.tensor_parallel > 1 else ""
    rows = [
        ("model", f"{shape.name}: {shape.num_parameters / 1e9:.3g} G parameters, {shape.num_layers} layers"),
        ("on", f"{devices}, weights in {question.stored.name}, keys and values in {question.kv.name}"),
        ("weights", _bytes(plan.weights.total) + (f"; {_bytes(memory.weight_bytes)}{each}" if each else "")),
        ("KV of a token", f"{_bytes(memory.kv_bytes_per_token)}{each}"),
        ("KV of a sequence", f"{_bytes(memory.kv_bytes_per_sequence)}{each}, of {length} tokens"),
        (
            "room for KV",
            f"{_bytes(max(0, memory.kv_room_bytes))}{each} beside weights and a reserve of {question.reserve:.0%}",
        ),
        ("sequences that fit", f"{memory.num_sequences}"),
        ("fewest devices", f"{plan.least_tensor_parallel or 'no number of them does'}"),
        (
            "ridge",
            f"{plan.ridge:.0f} operations a byte: {plan.peak / 1e12:.4g} T/s over {plan.bandwidth / 1e9:.4g} GB/s",
        ),
        (
            "compute-bound from",
            f"a batch of {plan.ridge_batch}" if plan.ridge_batch else "no batch: keys and values take longer",
        ),
        ("a request, at least", _seconds(plan.request_s)),
    ]
    show_table(("figure", ""), rows, empty="")
    click.echo()
    steps = [("prompt", plan.prefill), *(("decode", cost) for cost in plan.decode_by_batch)]
    if not any(cost.batch == plan.decode.batch for cost in plan.decode_by_batch):
        steps.append(("decode, does not fit", plan.decode))
    columns = ("step", "batch", "operations", "bytes", "operations/byte", "bound", "at least", "tokens/s at most")
    show_table(columns, [_step(name, cost) for name, cost in steps], empty="")
    for note in plan.notes:
        say(note)


def _step(name: str, cost: StepCost) -> tuple[str, ...]:
    return (
        name,
        str(cost.batch),
        f"{cost.flops / 1e9:.4g} G",
        _bytes(round(cost.num_bytes)),
        f"{cost.intensity:.3g}",
        cost.bound,
        _seconds(cost.time_s),
        f"{cost.tokens_per_s:.4g}",
    )


def _bytes(count: int) -> str:
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


def _seconds(value: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def _show_known(as_json: bool) -> None:
    if as_json:
        show_json(
            {
                "devices": [CPU, *DEVICES],
                "models": list(SHAPES),
                "precisions": list(WEIGHT_FORMATS),
                "kv_formats": list(KV_FORMATS),
            }
        )
        return
    devices = [
        (
            device.name,
            f"{device.memory_bytes / 1e9:.0f}",
            f"{device.bandwidth / 1e9:.0f}",
            *(f"{device.peaks[kind] / 1e12:.4g}" if kind in device.peaks else "" for kind in Arithmetic),
        )
        for device in DEVICES.values()
    ]
    show_table(("device", "GB", "GB/s", *(f"{kind} T/s" for kind in Arithmetic)), devices, empty="")
    click.echo()
    models = [(s.name, f"{s.num_parameters / 1e9:.3g} G", s.context_length) for s in SHAPES.values()]
    show_table(("model", "parameters", "context"), models, empty="")
    click.echo()
    show_table(("precision", "meaning"), [(f.name, f.summary) for f in WEIGHT_FORMATS.values()], empty="")
    click.echo(f"\nkeys and values: {', '.join(KV_FORMATS)}")
