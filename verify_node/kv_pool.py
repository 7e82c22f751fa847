"""Who holds how much of the memory for keys and values, counted in blocks of tokens.

Blocks have no place: a session's keys and values lie contiguously in memory of its own, which is
taken as it is written (`runners/ragged_cache.py` says why), so a block is a claim to be kept within
the budget and each is held by one holder. Storage knows nothing of this, and this nothing of it.
"""

from __future__ import annotations

from collections.abc import Hashable


class KvPool:
    """A number of blocks, each free or held. Not thread-safe."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        """`block_tokens`: tokens of one block, in all layers."""
        if num_blocks < 1 or block_tokens < 1:
            raise ValueError(f"no pool of {num_blocks} blocks of {block_tokens} tokens")
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self.num_free = num_blocks
        self._held: dict[Hashable, int] = {}

    def blocks_of(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_tokens)

    def blocks_held(self, holder: Hashable) -> int:
        return self._held.get(holder, 0)

    def tokens_held(self, holder: Hashable) -> int:
        """Tokens that the holder has blocks for."""
        return self.blocks_held(holder) * self.block_tokens

    @property
    def holders(self) -> frozenset[Hashable]:
        return frozenset(self._held)

    def take(self, holder: Hashable, num_tokens: int) -> bool:
        """The holder gets what it lacks to hold `num_tokens` in all; False, and nothing, when fewer
        blocks are free."""
        lacking = max(self.blocks_of(num_tokens) - self.blocks_held(holder), 0)
        if lacking > self.num_free:
            return False
        if lacking:
            self.num_free -= lacking
            self._held[holder] = self.blocks_held(holder) + lacking
        return True

    def hand_over(self, holder: Hashable, to: Hashable) -> None:
        """All blocks of a holder become those of another, which has none."""
        if to in self._held:
            raise ValueError("blocks were handed over to a holder that has some")
        if holder in self._held:
            self._held[to] = self._held.pop(holder)

    def give_back(self, holder: Hashable) -> None:
        """Frees all that the holder has, if anything."""
        self.num_free += self._held.pop(holder, 0)

    def check(self) -> None:
        """RuntimeError unless each block is free or held, and none twice."""
        counts = self._held.values()
        if min(counts, default=1) < 1 or self.num_free < 0:
            raise RuntimeError(f"{self.num_free} free blocks, and holders with {sorted(counts)}")
        if sum(counts) + self.num_free != self.num_blocks:
            raise RuntimeError(
                f"{sum(counts)} blocks are held and {self.num_free} free, of {self.num_blocks}"
            )
