"""The state of one sequence between steps. Knows no pool and, but for the beams of one search, no other sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from octavo_worker.engine.beams import BeamSearch
from octavo_worker.engine.blocks import ROOT, BlockKey, Seal, chain_hash
from octavo_worker.engine.plan import NO_DRAFT, Draft, RowPlan
from octavo_worker.engine.types import BlockId, FinishReason, Request, SeqId, Token

Rank = tuple[float, int, int]
"""Smaller is served first and preempted last: (what the queue says, arrival, choice)."""


class Phase(Enum):
    """Where a sequence stands. Preemption leads from RUNNING back to WAITING."""

    WAITING = "waiting"
    # Has its blocks; their content is on its way.
    AWAITING_KV = "awaiting_kv"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False, kw_only=True)
class Story:
    """What is told of a sequence beside its tokens. Beams of one search share one."""

    # Prefix hits at the first admission; None before it.
    num_cached: int | None = None
    num_preemptions: int = 0
    # Not yet reported.
    events: list[str] = field(default_factory=list[str])

    def take_events(self) -> tuple[str, ...]:
        """What has not been reported yet; it is now."""
        if not self.events:
            return ()
        events, self.events = tuple(self.events), []
        return events


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One choice's tokens and blocks. There is no prefill or decode phase, only tokens that have no KV yet."""

    request: Request
    id: SeqId
    rank: Rank
    # Hash that the chain of its blocks starts from.
    root: bytes
    # Prompt, then output; [0, num_computed) have KV.
    tokens: list[Token]
    story: Story
    phase: Phase = Phase.WAITING
    num_computed: int = 0
    # Tokens to compute before other beams fork off; None: all.
    goal: int | None = None
    # Choices to draw at the end of the known tokens: its own, and those that will be forked off there.
    draws: tuple[int, ...]
    draft: Draft = NO_DRAFT
    table: list[BlockId] = field(default_factory=list[BlockId])
    # What the table was when the sequence was swapped out: a block that it still holds, or ~slot of host memory.
    parked: list[int] = field(default_factory=list[int])
    # Canonical blocks of the table's first blocks: those that are full and computed.
    seals: list[Seal] = field(default_factory=list[Seal])
    # Keys of full blocks; kept over preemptions, extended on demand.
    keys: list[BlockKey] = field(default_factory=list[BlockKey])
    # Length of the table that the executor has been told.
    num_told_blocks: int = 0
    # The executor knows the row.
    is_told: bool = False
    # Prompt tokens whose log-probabilities were reported, from the second on.
    num_scored: int = 0
    # The search that it is a beam of.
    group: BeamGroup | None = None
    finish: FinishReason | None = None

    @property
    def num_pending(self) -> int:
        """Known tokens without KV: the whole prompt at first, 1 while decoding, more after forced tokens."""
        return (len(self.tokens) if self.goal is None else self.goal) - self.num_computed

    @property
    def num_output(self) -> int:
        """Tokens after the prompt, those of earlier attempts included."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def is_behind(self) -> bool:
        """Came with the output of an earlier attempt and has added nothing yet: whoever reads its stream waits."""
        return 0 < self.num_output == len(self.request.output)

    @property
    def unit(self) -> list[Sequence]:
        """What is planned, preempted and swapped with it, itself included: the beams that have blocks."""
        if self.group is None:
            return [self]
        return [self] if self.goal is not None else self.group.members

    @property
    def num_rows(self) -> int:
        """Rows of a step that must be kept for it, those of later forks included."""
        return len(self.draws) if self.group is None else self.group.width

    def key(self, index: int, block_size: int) -> BlockKey:
        """Key of a block that is full of known tokens."""
        while len(self.keys) <= index:
            start = len(self.keys) * block_size
            tokens = tuple(self.tokens[start : start + block_size])
            assert len(tokens) == block_size, "only full blocks have keys"
            parent = self.keys[-1].hash if self.keys else self.root
            self.keys.append(BlockKey(chain_hash(parent, tokens), tokens))
        return self.keys[index]

    def parent_seal(self) -> Seal:
        """What the next block to be sealed names as its parent."""
        return self.seals[-1] if self.seals else ROOT

    def advance(self, row: RowPlan) -> None:
        """The tokens of a row have KV now, and the executor knows the row."""
        self.is_told = True
        self.num_told_blocks = row.first_block + len(row.new_blocks)
        self.num_computed += len(row.tokens)
        self.num_scored += len(row.scored)

    def twin(self, choice: int, story: Story) -> Sequence:
        """Another choice with the same tokens, without blocks."""
        return Sequence(
            request=self.request,
            id=SeqId(self.id.request, choice),
            rank=(*self.rank[:2], choice),
            root=self.root,
            tokens=list(self.tokens),
            story=story,
            draws=(choice,),
            phase=Phase.RUNNING,
            num_scored=self.num_scored,
            group=self.group,
        )

    def append(self, token: Token, max_sequence_tokens: int) -> FinishReason | None:
        """Add a token to the output and apply the stop rules to it. No token may follow one that ends."""
        self.tokens.append(token)
        return ended_by(self.request, self.num_output, token, max_sequence_tokens)


@dataclass(slots=True, eq=False, kw_only=True)
class BeamGroup:
    """The beams of one search, in its order. All have equally many tokens."""

    search: BeamSearch
    width: int
    members: list[Sequence] = field(default_factory=list[Sequence])

    @property
    def leader(self) -> Sequence:
        """Stands for all of them in queues."""
        return self.members[0]


def ended_by(request: Request, num_output: int, token: Token, max_sequence_tokens: int) -> FinishReason | None:
    """Whether a sequence ends with this token, the last of so many output tokens."""
    params = request.params
    if token in params.stop_token_ids:
        return FinishReason.STOP
    if num_output >= params.max_tokens or len(request.prompt) + num_output >= max_sequence_tokens:
        return FinishReason.LENGTH
    return None


def ended_at_arrival(request: Request, max_sequence_tokens: int) -> FinishReason | None:
    """Whether the output of earlier attempts has ended the sequence already; also true for max_tokens 0."""
    for num_output, token in enumerate(request.output, start=1):
        reason = ended_by(request, num_output, token, max_sequence_tokens)
        if reason is not None:
            return reason
    return FinishReason.LENGTH if request.params.max_tokens <= 0 else None
