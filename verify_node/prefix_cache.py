"""The beginnings of texts whose keys and values are still there: whose session has ended.

A tree of blocks of ids leads to them, one for each tenant: what one tenant has said is never found
for another, not even by the time that an answer takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from anydraft.text.common_prefix import common_prefix
from verify_node.runners.base import SessionCache


@dataclass(eq=False, slots=True)
class Prefix:
    """A text, and the cache that holds all of it."""

    tenant: str
    token_ids: tuple[int, ...]
    cache: SessionCache


@dataclass(eq=False, slots=True)
class _Node:
    """What is known behind some whole blocks of ids."""

    children: dict[tuple[int, ...], _Node] = field(default_factory=dict)
    through: dict[Prefix, None] = field(default_factory=dict)
    """Prefixes that begin with those blocks; the last added last."""


class PrefixCache:
    """Least recently used first. Not thread-safe; it frees nothing by itself."""

    def __init__(self, block_tokens: int) -> None:
        """`block_tokens`: agreeing in fewer tokens is not worth looking for."""
        self._block = block_tokens
        self._roots: dict[str, _Node] = {}
        self._by_use: dict[Prefix, None] = {}

    def __len__(self) -> int:
        return len(self._by_use)

    @property
    def prefixes(self) -> list[Prefix]:
        """By their last use, the longest ago first."""
        return list(self._by_use)

    def find(
        self, tenant: str, token_ids: Sequence[int], most: int
    ) -> tuple[Prefix, int] | tuple[None, int]:
        """A prefix that agrees with `token_ids` as far as any does, in `most` tokens at the most,
        and in how many. (None, 0) when none agrees in a block."""
        token_ids = token_ids[:most]
        path = self._path(tenant, token_ids)
        if len(path) < 2:
            return None, 0
        depth = (len(path) - 1) * self._block
        rest = token_ids[depth:]
        best, agreed = None, -1
        for prefix in reversed(path[-1].through):
            behind = prefix.token_ids[depth : depth + len(rest)]
            alike = common_prefix(rest, behind)
            if alike > agreed:
                best, agreed = prefix, alike
            if agreed == len(rest):
                break
        return (None, 0) if best is None else (best, depth + agreed)

    def use(self, prefix: Prefix) -> None:
        """It was of use: it goes last."""
        del self._by_use[prefix]
        self._by_use[prefix] = None

    def add(self, prefix: Prefix) -> None:
        node = self._roots.setdefault(prefix.tenant, _Node())
        for block in self._blocks(prefix.token_ids):
            node = node.children.setdefault(block, _Node())
            node.through[prefix] = None
        self._by_use[prefix] = None

    def remove(self, prefix: Prefix) -> None:
        del self._by_use[prefix]
        path = self._path(prefix.tenant, prefix.token_ids)
        for node in path[1:]:
            del node.through[prefix]
        for node, child, block in zip(path, path[1:], self._blocks(prefix.token_ids), strict=False):
            if not child.through:
                del node.children[block]
                break
        if not path[0].children:
            del self._roots[prefix.tenant]

    def contained_in(self, tenant: str, token_ids: Sequence[int]) -> list[Prefix]:
        """Those that `token_ids` begin with: the longer text is of the same use."""
        found: list[Prefix] = []
        for depth, node in enumerate(self._path(tenant, token_ids)[1:], start=1):
            for prefix in node.through:
                length = len(prefix.token_ids)
                ends_here = length // self._block == depth
                if ends_here and prefix.token_ids == tuple(token_ids[:length]):
                    found.append(prefix)
        return found

    def _path(self, tenant: str, token_ids: Sequence[int]) -> list[_Node]:
        """The root and all nodes that the whole blocks of `token_ids` lead to."""
        node = self._roots.get(tenant)
        path = [] if node is None else [node]
        for block in self._blocks(token_ids):
            node = None if node is None else node.children.get(block)
            if node is None:
                break
            path.append(node)
        return path

    def _blocks(self, token_ids: Sequence[int]) -> list[tuple[int, ...]]:
        """Whole ones only."""
        starts = range(0, len(token_ids) - self._block + 1, self._block)
        return [tuple(token_ids[start : start + self._block]) for start in starts]
