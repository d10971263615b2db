"""What must hold after a fault, told from the job table and from what clients saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from chaos_cluster import Cluster
from chaos_load import Outcome

from octavo_worker.verify.noise import Label, gumbels, noise_key

TIE = 1e-3
ENDS = ("succeeded", "failed", "cancelled")


@dataclass(slots=True, kw_only=True)
class Report:
    """Findings of one round."""

    troubles: list[str] = field(default_factory=list)
    num_ties: int = 0


def check_ended_once(cluster: Cluster, outcomes: Sequence[Outcome]) -> list[str]:
    """Every accepted job has one end in its history, that of its state, and the result that its client has."""
    troubles = [f"{o.ask.prompt[:40]!r} ended with {o.error!r} (job {o.job_id})" for o in outcomes if o.error]
    ids = [o.job_id for o in outcomes if o.job_id]
    rows = cluster.query(
        """select j.id::text, j.state, j.result->'token_ids' as token_ids,
             array_agg(e.event order by e.id) as events, array_agg(e.fence order by e.id) as fences
           from jobs j join job_events e on e.job_id = j.id where j.id = any(%s::uuid[]) group by j.id""",
        ids,
    )
    by_id = {row["id"]: row for row in rows}
    for outcome in outcomes:
        row = by_id.get(outcome.job_id)
        if row is None:
            troubles.append(f"job {outcome.job_id!r} has no row")
            continue
        events, fences = row["events"], row["fences"]
        if [event for event in events if event in ENDS] != [row["state"]] or events[-1] != row["state"]:
            troubles.append(f"job {outcome.job_id} is {row['state']}, and its history is {events}")
        if fences != sorted(fences):
            troubles.append(f"job {outcome.job_id}: something happened under an old fence: {events} {fences}")
        if "cancel_requested" in events:
            troubles.append(f"job {outcome.job_id}: somebody cancelled it")
        if not outcome.error and tuple(row["token_ids"] or ()) != outcome.token_ids:
            troubles.append(f"job {outcome.job_id}: the row and the client have different tokens")
    left = cluster.query("select id::text, state from jobs where ended_at is null")
    troubles += [f"job {row['id']} is still {row['state']}" for row in left]
    return troubles


def all_exact(cluster: Cluster) -> bool:
    """Whether every worker says that the same request gives the same tokens bit by bit, and all compute alike."""
    rows = cluster.query(
        """select card->>'numerics_id' as numerics_id, bool_and((card->>'exact')::bool) as exact
           from processes where role = 'worker' group by 1"""
    )
    return len(rows) == 1 and rows[0]["exact"]


def check_tokens(
    undisturbed: Sequence[Outcome],
    disturbed: Sequence[Outcome],
    prompts: Sequence[Sequence[int]],
    *,
    model: Path,
    exact: bool,
) -> Report:
    """The tokens equal those of the undisturbed run.

    Only where the model's card does not promise that bit by bit, a difference may stand at a tie of the reference.
    """
    report = Report()
    for ours, expected, prompt in zip(disturbed, undisturbed, prompts, strict=True):
        if ours.error or ours.token_ids == expected.token_ids:
            continue
        pairs = zip(ours.token_ids, expected.token_ids, strict=False)
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if at is None:
            report.troubles.append(f"job {ours.job_id} has {len(ours.token_ids)} tokens, not {len(expected.token_ids)}")
            continue
        two = ours.token_ids[at], expected.token_ids[at]
        if exact:
            report.troubles.append(f"job {ours.job_id}: token {at} is {two[0]}, not {two[1]}, by exact workers")
            continue
        margin = _margin(model, [*prompt, *expected.token_ids[:at]], two, ours.ask.parameters)
        if margin < TIE:
            report.num_ties += 1
        else:
            report.troubles.append(f"job {ours.job_id}: token {at} is {two[0]}, not {two[1]}, by {margin:.5f}")
    return report


def _margin(model: Path, tokens: list[int], two: tuple[int, int], parameters: dict[str, object]) -> float:
    """How far apart the reference finds two tokens: by its logits, with the noise of a seeded request."""
    logits = _reference(model, tokens)
    temperature = float(str(parameters.get("temperature") or 0.0))
    if temperature:
        seed = int(str(parameters["seed"]))
        key = noise_key(seed=seed, choice=0, position=len(tokens), label=Label.TARGET)
        logits = logits + temperature * gumbels(key, np.arange(len(logits)))
    return float(abs(logits[two[0]] - logits[two[1]]))


_loaded: dict[Path, object] = {}


def _reference(model: Path, tokens: list[int]) -> np.ndarray:
    # Only needed for the proof of a tie: seconds and a GiB.
    import torch
    from transformers import AutoModelForCausalLM

    if model not in _loaded:
        folder, file = (model, {}) if model.is_dir() else (model.parent, {"gguf_file": model.name})
        _loaded[model] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **file).eval()
    with torch.no_grad():
        return _loaded[model](torch.tensor([tokens])).logits[0, -1].double().numpy()  # pyright: ignore[reportCallIssue]


def prompt_ids(cluster: Cluster, outcomes: Sequence[Outcome]) -> list[list[int]]:
    """The prompts of these jobs as the platform tokenised them."""
    rows = cluster.query(
        "select id::text, prompt_ids from jobs where id = any(%s::uuid[])", [o.job_id for o in outcomes]
    )
    by_id = {row["id"]: list(row["prompt_ids"]) for row in rows}
    return [by_id[o.job_id] for o in outcomes]


def restart_delays(cluster: Cluster, job_ids: set[str], since: object) -> dict[str, float]:
    """Seconds from a moment of the database's time until each job ran again."""
    rows = cluster.query(
        """select j.id::text, extract(epoch from min(e.time) - %s)::float8 as after_s
           from jobs j join job_events e on e.job_id = j.id
           where j.id = any(%s::uuid[]) and e.event = 'running' and e.time > %s group by j.id""",
        since,
        list(job_ids),
        since,
    )
    return {row["id"]: row["after_s"] for row in rows}
