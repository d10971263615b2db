"""Choosing where the logits lie gives what the CPU's verifier gives, row by row, whatever rows stand together."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from triton_world import SOME

from octavo_worker.engine.plan import Draft
from octavo_worker.engine.types import SamplingParams
from octavo_worker.verify.base import ScoredToken, WantedRow
from octavo_worker.verify.context import TokenContext
from octavo_worker.verify.coupled import Coupled
from octavo_worker.verify.gpu import GpuVerifier

VOCAB = 1100
PLAIN = [{}, {"temperature": 0.7}, {"temperature": 3.0}]
MORE = [
    {"temperature": 0.7, "top_k": 5},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.0, "min_p": 0.1},
    {"num_logprobs": 2},
    {"temperature": 0.0, "top_k": 5},
    {"logit_bias": ((3, 50.0),)},
]
BAD = [None, math.nan, math.inf, -math.inf]


def make_row(params, position, num_choices, num_candidates, draft):
    params = SamplingParams(max_tokens=9, seed=position, **params)
    context = TokenContext(params, num_prompt_tokens=1) if params.logit_bias else None
    if context is not None:
        context.know(0, [1] * position)
    is_alone = num_candidates or draft.tokens
    choices = () if num_candidates else tuple(range(1 if is_alone else num_choices))
    return WantedRow(
        choices=choices,
        position=position,
        params=params,
        draft=Draft() if num_candidates else draft,
        num_candidates=num_candidates,
        context=context,
    )


ROWS = st.builds(
    make_row,
    params=st.sampled_from(PLAIN + MORE),
    position=st.integers(1, 5),
    num_choices=st.integers(1, 3),
    num_candidates=st.sampled_from([0, 0, 0, 2]),
    draft=st.sampled_from([Draft(), Draft(), Draft.chain((5, 7))]),
)


@SOME
@given(
    rows=st.lists(st.tuples(ROWS, st.sampled_from(BAD + [None] * 8)), min_size=1, max_size=6), seed=st.integers(0, 99)
)
def test_verdicts_are_those_of_the_cpu(rows, seed):
    torch.manual_seed(seed)
    found = []
    for row, bad in rows:
        # Whole numbers: equals are common, and the first of them wins.
        part_SV = torch.randint(-3, 4, (1 + len(row.draft), VOCAB)).float()
        if bad == -math.inf:
            part_SV[0] = bad
        elif bad is not None:
            part_SV[0, 17] = bad
        found.append(part_SV)
    logits_SV, wanted_rows = torch.cat(found), [row for row, _ in rows]
    wanted = Coupled().verify(wanted_rows, logits_SV.clone())
    assert GpuVerifier(Coupled()).verify(wanted_rows, logits_SV.clone()) == wanted


class Unasked:
    """A verifier that nobody may need."""

    def verify(self, rows, logits_SV):
        raise AssertionError(rows)

    score = verify


def test_plain_rows_are_chosen_without_moving_their_logits():
    rows = [make_row(params, 3, 1, 0, Draft()) for params in [*PLAIN, MORE[4]]]
    verdicts = GpuVerifier(Unasked()).verify(rows, torch.randn(len(rows), VOCAB))
    assert [len(verdict.tokens) for verdict in verdicts] == [1] * len(rows)


def test_known_tokens_are_scored_as_on_the_cpu():
    logits_SV, asked = torch.randn(2, VOCAB), [ScoredToken(token=4, num_top=1), ScoredToken(token=9, num_top=0)]
    assert GpuVerifier(Coupled()).score(asked, logits_SV.clone()) == Coupled().score(asked, logits_SV)
