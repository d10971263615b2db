"""Puts together what a device needs: the target's files, the embedding's table, tokenizer, chat and test vectors.

Knows no tool-chain. What can run here is run, with the code that devices run.
"""

from __future__ import annotations

import json
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from octavo_common.errors import Internal
from octavo_common.text.bundle import TokenizerBundle
from octavo_common.text.tokenizer import Tokenizer
from octavo_device.bundle import TablePlace, read_bundle
from octavo_device.spec import read_spec
from octavo_device.text import ChatPieces, Turn
from octavo_device.verify import limit_db, replay
from octavo_edge.artifacts import CARRIED, Bundle, CompiledBlob
from octavo_edge.bundle.chat import chat_document, reduce_template
from octavo_edge.bundle.metadata import Facts, write_metadata
from octavo_edge.graph.blob import Blob, read_blob
from octavo_edge.graph.manifest import read_manifest
from octavo_edge.stage import Gate, StageContext, StageOutcome, TensorLoss

_QUESTION, _BEGINNING = "What is the capital of France?", "The capital of France is"
_NUM_WORST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Deploy:
    """A compiled model to a bundle; ``model`` and ``recipe`` are names for people.

    ``replays`` says that the bundle's vectors are replayed here by the device's own runner; else only a device can.
    """

    model: str
    recipe: str
    replays: bool
    name: str = "deploy"
    output: type[Bundle] = Bundle

    @property
    def cache_key(self) -> str:
        """The names, and whether it is replayed."""
        return json.dumps([self.model, self.recipe, self.replays])

    @property
    def gates(self) -> tuple[Gate, ...]:
        """None on what only a device can measure."""
        return (Gate(metric="num_outputs_below_limit", at_most=0),) if self.replays else ()

    def run(self, source: CompiledBlob, ctx: StageContext) -> StageOutcome:
        """Copy, write, and replay the vectors from the bundle."""
        ctx.step(0, 2, "writing the bundle")
        export, out = source.path / "export", ctx.out
        manifest, spec, blob = read_manifest(export), read_spec(export), read_blob(source.path / "blob")
        compiled = json.loads((source.path / "compiled.json").read_text())
        _copy(source.path, blob, out)
        if manifest.prefix is not None:
            shutil.copyfile(export / manifest.prefix.file, out / manifest.prefix.file)
        table = compiled["embedding"]
        tokenizer_bundle = TokenizerBundle.from_directory(export)
        tokenizer = Tokenizer(tokenizer_bundle)
        try:
            pieces, warnings = _chat(tokenizer)
        finally:
            tokenizer.close()
        if pieces is not None:
            (out / "chat.json").write_text(json.dumps(chat_document(pieces), ensure_ascii=False, indent=1) + "\n")
        sample = _BEGINNING if pieces is None else pieces.render([Turn(user=_QUESTION)])
        (out / "sample_prompt.txt").write_text(sample, encoding="utf-8")
        facts = Facts(
            model=self.model,
            recipe=self.recipe,
            target=compiled["target"],
            outcome=compiled["outcome"],
            eos_token_ids=tokenizer_bundle.eos_ids,
            prompt_prefix_ids=_prefix(tokenizer),
            versions={**compiled["versions"], "python": platform.python_version()},
        )
        place = None if table is None else TablePlace(**{**table, "shape": tuple(table["shape"])})
        write_metadata(out, facts, spec, manifest, blob, place)
        ctx.step(1, 2, "replaying the vectors")
        return _outcome(out, warnings, ctx, replays=self.replays)


def _copy(source: Path, blob: Blob, out: Path) -> None:
    export = source / "export"
    names = [*CARRIED, *(path.name for path in export.glob("embedding*.bin"))]
    for name in names:
        if (export / name).is_file():
            shutil.copyfile(export / name, out / name)
    shutil.copytree(export / "vectors", out / "vectors", copy_function=shutil.copyfile)
    (out / "encodings").mkdir()
    for path in export.glob("*.encodings*.json"):
        shutil.copyfile(path, out / "encodings" / path.name)
    for name in blob.files:
        if (out / name).exists():
            raise Internal(f"a target's file has the name {name}, which a bundle has already")
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / "blob" / name, out / name)


def _chat(tokenizer: Tokenizer) -> tuple[ChatPieces | None, list[str]]:
    if not tokenizer.has_chat_template:
        return None, ["the model has no chat template: on the device there is only plain text"]
    found = reduce_template(tokenizer.render)
    warnings = [found.warning] if found.warning else []
    if "strftime_now" in (tokenizer.bundle.chat_template or ""):
        warnings.append("the chat template tells the date: on the device it is that of this build")
    return found.pieces, warnings


def _prefix(tokenizer: Tokenizer) -> list[int]:
    """What the model wants in front of plain text."""
    bare, framed = tokenizer.encode("x", add_special=False), tokenizer.encode("x")
    starts = range(len(framed) - len(bare) + 1)
    return framed[: next(start for start in starts if framed[start : start + len(bare)] == bare)]


def _outcome(out: Path, warnings: list[str], ctx: StageContext, *, replays: bool) -> StageOutcome:
    bundle = read_bundle(out)
    losses: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    if replays:
        for result in replay(bundle):
            ctx.step(1, 2, f"replayed {result.part}, {result.ar} tokens")
            worst_output, worst_db = result.worst
            counted = {"part": result.part, "new_tokens": result.ar, "outputs": len(result.outputs)}
            rows.append({**counted, "worst": worst_output, "sqnr_db": worst_db})
            losses |= {f"{name} ({result.part}, ar{result.ar})": db for name, db in result.outputs.items()}
    worst = sorted(losses.items(), key=lambda item: item[1])
    limit = limit_db(bundle)
    ctx.step(2, 2)
    return StageOutcome(
        metrics={
            "size_bytes": float(sum(bundle.files.values())),
            "num_files": float(len(bundle.files)),
            **(_replayed(losses, limit) if replays else {}),
        },
        warnings=tuple(warnings),
        worst=tuple(TensorLoss(tensor=name, sqnr_db=db) for name, db in worst[:_NUM_WORST]),
        details={
            "runtime": bundle.runtime,
            "replay": f"here, limit {limit:g} dB" if replays else "on the device: `octavo device verify DIR`",
            "graphs_replayed": rows,
            "files_mb": {name: num_bytes / 1e6 for name, num_bytes in bundle.files.items()},
        },
    )


def _replayed(losses: dict[str, float], limit: float) -> dict[str, float]:
    return {
        "num_outputs_replayed": float(len(losses)),
        "num_outputs_below_limit": float(sum(db < limit for db in losses.values())),
        "replay_worst_sqnr_db": min(losses.values()),
    }
