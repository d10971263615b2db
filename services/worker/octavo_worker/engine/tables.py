"""Block tables of sequences over one pool: how they begin, grow, are shared, copied before a write, and end.

Knows no batch and no order among sequences.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from octavo_worker.engine.blocks import BlockPool
from octavo_worker.engine.plan import NO_DRAFT
from octavo_worker.engine.sequence import Sequence
from octavo_worker.engine.types import BlockId

Copy = tuple[BlockId, BlockId]
"""(from, to)"""


class Tables:
    """Gives sequences their blocks. With KV in [0, num_computed), a row writes [num_computed, end)."""

    def __init__(self, pool: BlockPool, *, lookahead: int) -> None:
        """``lookahead``: slots that the executor writes beyond a row's last known token."""
        self.pool = pool
        self.lookahead = lookahead
        self._size = pool.block_size

    def begin(self, seq: Sequence, *, num_spare: int) -> bool:
        """Take cached blocks of the beginning and new ones for all other known tokens; False if there are too few.

        ``num_spare`` blocks must be left beside them. All known tokens at once: who is admitted can compute its prompt
        without a preemption.
        """
        pool, num_known = self.pool, len(seq.tokens) if seq.goal is None else seq.goal
        seals = pool.match(seq.key(index, self._size) for index in range(self.num_matchable(seq)))
        ahead = self.lookahead if seq.goal is None else 0
        missing = pool.blocks_for(num_known + ahead) - len(seals)
        if not pool.can_alloc(missing + num_spare):
            pool.release(seal.block for seal in reversed(seals))
            return False
        seq.seals = seals
        seq.table = [*(seal.block for seal in seals), *pool.alloc(missing)]
        seq.num_computed = len(seals) * self._size
        return True

    def num_matchable(self, seq: Sequence) -> int:
        """Blocks of the beginning that could be cached."""
        if self._must_score(seq):
            return 0
        # The last known token is computed, for its logits; so never a hit on all of the blocks.
        return (len(seq.tokens) - 1 if seq.goal is None else seq.goal) // self._size

    @staticmethod
    def _must_score(seq: Sequence) -> bool:
        """Log-probabilities of the prompt are wanted, and some are missing: what is cached has none."""
        return seq.request.params.num_prompt_logprobs is not None and seq.num_scored < len(seq.request.prompt) - 1

    def end_of(self, seq: Sequence, num_tokens: int, num_drafts: int) -> int:
        """Border of the slots that a row of so many tokens writes."""
        end = seq.num_computed + num_tokens
        return end + max(num_drafts, self.lookahead) if end == len(seq.tokens) else end

    def has_all(self, seq: Sequence, num_tokens: int, num_drafts: int) -> bool:
        """Whether a row of so many tokens needs no new block: as in most steps."""
        has_slots = self.end_of(seq, num_tokens, num_drafts) <= len(seq.table) * self._size
        return has_slots and self._shared_tail(seq) is None

    def missing(self, seqs: SequenceOf[Sequence], num_tokens: int, num_drafts: int) -> int:
        """New blocks that rows of so many tokens need: to grow, and to copy tails that others hold, too."""
        if len(seqs) == 1:
            seq = seqs[0]
            return self._growth(seq, num_tokens, num_drafts) + (self._shared_tail(seq) is not None)
        num_missing, holders = 0, dict[BlockId, int]()
        for seq in seqs:
            num_missing += self._growth(seq, num_tokens, num_drafts)
            tail = self._shared_tail(seq)
            if tail is not None:
                block = seq.table[tail]
                holders[block] = holders.get(block, 0) + 1
        # Who writes last has the block to itself, unless somebody else holds it.
        return num_missing + sum(min(num, self.pool.num_refs(block) - 1) for block, num in holders.items())

    def _growth(self, seq: Sequence, num_tokens: int, num_drafts: int) -> int:
        return max(0, -(-self.end_of(seq, num_tokens, num_drafts) // self._size) - len(seq.table))

    def _shared_tail(self, seq: Sequence) -> int | None:
        """Index of the block that the next write falls into, if it has content that others share."""
        index, offset = divmod(seq.num_computed, self._size)
        # Only a partial block can be shared and written: what is shared beside it is full.
        return index if offset and self.pool.num_refs(seq.table[index]) > 1 else None

    def grow(self, seq: Sequence, num_tokens: int, num_drafts: int) -> Copy | None:
        """Give a row the blocks that it writes to; there must be enough. Returns the copy that must come before."""
        growth = self._growth(seq, num_tokens, num_drafts)
        if growth:
            seq.table.extend(self.pool.alloc(growth))
        tail = self._shared_tail(seq)
        if tail is None:
            return None
        shared = seq.table[tail]
        (seq.table[tail],) = own = self.pool.alloc(1)
        self.pool.release((shared,))
        seq.num_told_blocks = min(seq.num_told_blocks, tail)
        return shared, own[0]

    def fork(self, seq: Sequence, twin: Sequence) -> None:
        """Let a twin share everything that has KV, a partial tail too."""
        twin.num_computed = seq.num_computed
        twin.table = seq.table[: self.pool.blocks_for(seq.num_computed)]
        self.pool.fork(twin.table)
        # The executor copies what it knows, so that nothing of it is told again.
        twin.is_told, twin.num_told_blocks = seq.is_told, min(seq.num_told_blocks, len(twin.table))
        twin.seals = list(seq.seals)
        # Of what is shared only: a beam that starts over shares less than it knows.
        twin.keys = seq.keys[: len(seq.seals)]

    def seal(self, seq: Sequence) -> None:
        """Make blocks findable that are full of computed, committed tokens."""
        num_full = seq.num_computed // self._size
        for index in range(len(seq.seals), num_full):
            seq.seals.append(self.pool.seal(seq.table[index], seq.key(index, self._size), seq.parent_seal()))

    def release(self, seq: Sequence) -> None:
        """Give everything back, tails first, so that beginnings stay cached longest."""
        self.pool.release(reversed(seq.table))
        seq.table = []
        self.forget(seq)

    @staticmethod
    def forget(seq: Sequence) -> None:
        """Nothing is computed any more, and the executor does not know the row."""
        seq.seals, seq.num_computed, seq.draft = [], 0, NO_DRAFT
        seq.is_told, seq.num_told_blocks = False, 0
