"""Who holds which block, and which block holds which content. Integers only: knows no tensors and no sequences.

A block is *used* (references > 0), *cached* (no reference, content findable) or *free* (no reference, no content).
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from octavo_worker.engine.types import BlockId, Token


class OutOfBlocks(RuntimeError):
    """More blocks were taken than can_alloc allowed: a bug of the scheduler, never normal flow."""


class BlockKey(NamedTuple):
    """Content of a full block: the hash of all tokens up to its end and of the extras, and its own tokens."""

    hash: bytes
    tokens: tuple[Token, ...]


class Seal(NamedTuple):
    """A findable block in one of its lives. The number tells it from later content of the same block."""

    block: BlockId
    life: int


# Parent of a sequence's first block.
ROOT = Seal(-1, 0)


def root_hash(extras: Iterable[tuple[str, str]]) -> bytes:
    """Start of a hash chain: what content depends on beside tokens, as (tag, value), for example ("salt", ...)."""
    digest = hashlib.sha256()
    for tag, value in extras:
        # Lengths first, so that no two lists of extras read the same.
        for part in (tag.encode(), value.encode()):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.digest()


def chain_hash(parent: bytes, tokens: Sequence[Token]) -> bytes:
    """Hash of a full block after its parent's hash."""
    return hashlib.sha256(parent + array("q", tokens).tobytes()).digest()


class BlockPool:
    """All blocks of one KV tensor: references, an index of content, and the order in which cached blocks go.

    The index key is (hash, parent in its life, tokens): content is compared and its parent is the very block that was
    matched before it, so a collision of hashes can only cost a miss.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError("a pool needs at least one block of one token")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._refs = [0] * num_blocks
        self._free = deque(range(num_blocks))
        # Least recently used first.
        self._cached: OrderedDict[BlockId, None] = OrderedDict()
        self._index: dict[tuple[BlockKey, Seal], Seal] = {}
        # Sealed blocks: their entry in the index.
        self._entries: dict[BlockId, tuple[BlockKey, Seal]] = {}
        self._num_lives = 0

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that hold content which no one uses now."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - len(self._free) - len(self._cached)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that so many slots take."""
        return -(-num_tokens // self.block_size)

    def can_alloc(self, num_blocks: int) -> bool:
        """Whether alloc would succeed."""
        return num_blocks <= len(self._free) + len(self._cached)

    def alloc(self, num_blocks: int) -> list[BlockId]:
        """Take blocks with one reference each: free ones first, then the least recently used cached ones.

        Raises OutOfBlocks.
        """
        if not self.can_alloc(num_blocks):
            raise OutOfBlocks(f"{num_blocks} blocks asked, {len(self._free)} free, {len(self._cached)} cached")
        taken: list[BlockId] = []
        for _ in range(num_blocks):
            if self._free:
                block = self._free.popleft()
            else:
                block, _none = self._cached.popitem(last=False)
                del self._index[self._entries.pop(block)]
            self._refs[block] = 1
            taken.append(block)
        return taken

    def match(self, keys: Iterable[BlockKey]) -> list[Seal]:
        """The longest cached prefix of the keys; takes a reference to each of its blocks."""
        found: list[Seal] = []
        parent = ROOT
        for key in keys:
            seal = self._index.get((key, parent))
            if seal is None:
                break
            self._take(seal.block)
            found.append(seal)
            parent = seal
        return found

    def seal(self, block: BlockId, key: BlockKey, parent: Seal) -> Seal:
        """Make a full, computed block findable after its parent.

        Returns the canonical block of that content: another one, or its own earlier seal, if the content was known
        already. Children must name the canonical block as parent, else they could not be found through it.
        """
        assert self._refs[block] > 0, "only a used block can be sealed"
        entry = (key, parent)
        known = self._index.get(entry)
        if known is not None:
            return known
        if block in self._entries:
            return self._adopt(block, entry)
        self._num_lives += 1
        seal = Seal(block, self._num_lives)
        self._index[entry] = seal
        self._entries[block] = entry
        return seal

    def _adopt(self, block: BlockId, entry: tuple[BlockKey, Seal]) -> Seal:
        """Let a sealed block be found after another parent: that of its earlier one does not live any more."""
        before = self._entries[block]
        assert before[0] == entry[0], "a block has one content in a life"
        seal = self._index[entry] = self._index.pop(before)
        self._entries[block] = entry
        return seal

    def retake(self, seal: Seal) -> bool:
        """Take a reference to a sealed block if it still lives the life that the seal names."""
        entry = self._entries.get(seal.block)
        if entry is None or self._index[entry] != seal:
            return False
        self._take(seal.block)
        return True

    def fork(self, blocks: Iterable[BlockId]) -> None:
        """Share used blocks: one more reference to each."""
        refs = self._refs
        for block in blocks:
            assert refs[block] > 0, "only a used block can be shared"
            refs[block] += 1

    def release(self, blocks: Iterable[BlockId]) -> None:
        """Give one reference back per block; a sequence's in reverse, because the first given is the first reused."""
        refs = self._refs
        for block in blocks:
            assert refs[block] > 0, "a block was released twice"
            refs[block] -= 1
            if not refs[block]:
                if block in self._entries:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def view(self) -> tuple[tuple[int, ...], tuple[BlockId, ...]]:
        """References of all blocks, and the cached ones, least recently used first: copies."""
        return tuple(self._refs), tuple(self._cached)

    def num_refs(self, block: BlockId) -> int:
        """References to a block."""
        return self._refs[block]

    def check_integrity(self, tables: Iterable[Iterable[BlockId]]) -> None:
        """Raise AssertionError unless references equal the entries of all tables and every block is accounted for."""
        counted = [0] * self.num_blocks
        for table in tables:
            for block in table:
                counted[block] += 1
        assert counted == self._refs, f"references {self._refs} but tables hold {counted}"
        idle = [*self._free, *self._cached]
        assert len(idle) == len(set(idle)), "a block is idle twice"
        assert all(self._refs[block] == 0 for block in idle), "an idle block is referenced"
        assert len(idle) + sum(refs > 0 for refs in self._refs) == self.num_blocks, "a block is lost"
        assert not any(block in self._entries for block in self._free), "a free block is findable"
        assert all(block in self._entries for block in self._cached), "a cached block cannot be found"
        for block, entry in self._entries.items():
            assert self._index[entry].block == block, "index and entries differ"
        assert len(self._index) == len(self._entries), "the index names blocks without content"

    def _take(self, block: BlockId) -> None:
        if self._refs[block] == 0:
            del self._cached[block]
        self._refs[block] += 1
