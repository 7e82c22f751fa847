"""One sequence of an assistant, for engines that take trees and for those that know chains only.

Both keep the trunk in the first slots of a cache, in order, so that cutting it is setting a number.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from anydraft.text.common_prefix import common_prefix
from draft_node.engines.base import AssistantEngine, Choices, Path
from draft_node.engines.cache import Cache, Pass, TreeCache, TreePlaces
from draft_node.engines.checks import (
    check_feed,
    check_paths,
    check_truncate,
    closed_state,
)
from draft_node.engines.choices import best_choices

CacheKind = TypeVar("CacheKind", bound=Cache)


class CachedEngine(AssistantEngine, Protocol):
    """What a state needs of the engine that made it."""

    @property
    def id_limit(self) -> int | None:
        """Ids from here on are padding of the logits and never proposed; None without padding."""


class CachedState(ABC, Generic[CacheKind]):
    """What trees and chains have in common. See `draft_node.engines.base.AssistantState`."""

    def __init__(self, engine: CachedEngine, cache: CacheKind) -> None:
        self._engine = engine
        self._open_cache: CacheKind | None = cache
        self._trunk = 0

    @property
    def _cache(self) -> CacheKind:
        if self._open_cache is None:
            raise closed_state()
        return self._open_cache

    @property
    def length(self) -> int:
        return 0 if self._open_cache is None else self._trunk

    def read(self, ids: Sequence[int], *, wanted: bool) -> Choices | None:
        cache = self._cache
        check_feed(ids, self._trunk, self._engine)
        self._drop_branches(cache)
        chunk, choices = self._engine.chunk_tokens, []
        try:
            for start in range(0, len(ids), chunk):
                part = ids[start : start + chunk]
                is_last = start + chunk >= len(ids)
                choices = self._run(Pass(part, [len(part) - 1] if wanted and is_last else []))
        except BaseException:
            cache.length = self._trunk
            raise
        self._trunk += len(ids)
        return choices[0] if wanted else None

    def expand(self, paths: Sequence[Path]) -> list[Choices]:
        cache = self._cache
        check_paths(paths, self._trunk, self._engine)
        return self._expand(cache, paths)

    def truncate(self, length: int) -> None:
        cache = self._cache
        check_truncate(length, self._trunk)
        self._trunk = length
        self._drop_branches(cache)

    def close(self) -> None:
        if self._open_cache is not None:
            self._open_cache.close()
            self._open_cache = None
            self._trunk = 0

    @abstractmethod
    def advance(self, path: Path) -> int: ...

    @abstractmethod
    def _expand(self, cache: CacheKind, paths: Sequence[Path]) -> list[Choices]: ...

    def _drop_branches(self, cache: CacheKind) -> None:
        cache.length = self._trunk

    def _run(self, work: Pass) -> list[Choices]:
        logits = self._cache.run(work)
        return [best_choices(row, self._engine.id_limit) for row in logits]


class ChainState(CachedState[Cache]):
    """One branch at a time, the path that was expanded last, in the slots behind the trunk."""

    def __init__(self, engine: CachedEngine, cache: Cache) -> None:
        super().__init__(engine, cache)
        self._branch: list[int] = []
        self._choices: list[Choices | None] = []
        """What may follow each of them, where that was asked for."""

    def advance(self, path: Path) -> int:
        _ = self._cache
        count = common_prefix(self._branch, path)
        self._trunk += count
        del self._branch[:count], self._choices[:count]
        return count

    def _expand(self, cache: Cache, paths: Sequence[Path]) -> list[Choices]:
        (path,) = paths
        same = common_prefix(self._branch, path)
        if same == len(path) and (known := self._choices[same - 1]) is not None:
            return [known]
        # The last id is read again where only what follows it is not known.
        same = min(same, len(path) - 1)
        new = path[same:]
        check_feed(new, self._trunk + same, self._engine)
        cache.length = self._trunk + same
        del self._branch[same:], self._choices[same:]
        found = self._run(Pass(new, [len(new) - 1]))
        self._branch += new
        self._choices += [None] * (len(new) - 1) + [found[0]]
        return found

    def _drop_branches(self, cache: Cache) -> None:
        super()._drop_branches(cache)
        self._branch.clear()
        self._choices.clear()


@dataclass(frozen=True, slots=True)
class _Node:
    """A token that was tried out behind the trunk."""

    slots: tuple[int, ...]
    """Of its path behind the trunk; its own is the last."""
    choices: Choices


class TreeState(CachedState[TreeCache]):
    """Branches in the slots behind the trunk, every token behind those of its own path.

    Invariant: `cache.length` is the trunk and one slot for each of `_nodes`; none is dead.
    """

    def __init__(self, engine: CachedEngine, cache: TreeCache) -> None:
        super().__init__(engine, cache)
        self._nodes: dict[Path, _Node] = {}
        """In the order of their slots."""

    def advance(self, path: Path) -> int:
        cache = self._cache
        count = len(path)
        while count and path[:count] not in self._nodes:
            count -= 1
        if count == 0:
            return 0
        accepted = self._nodes[path[:count]].slots
        kept = {
            tail[count:]: node
            for tail, node in self._nodes.items()
            if len(tail) > count and tail[:count] == path[:count]
        }
        sources = [*accepted, *(node.slots[-1] for node in kept.values())]
        cache.move(sources, self._trunk)
        self._trunk += count
        new_slot = {old: self._trunk - count + at for at, old in enumerate(sources)}
        self._nodes = {
            tail: _Node(tuple(new_slot[slot] for slot in node.slots[count:]), node.choices)
            for tail, node in kept.items()
        }
        return count

    def _expand(self, cache: TreeCache, paths: Sequence[Path]) -> list[Choices]:
        missing = self._missing(paths)
        if missing:
            self._compute(cache, missing)
        return [self._nodes[path].choices for path in paths]

    def _missing(self, paths: Sequence[Path]) -> list[Path]:
        """The paths and beginnings of paths that are not held, parents first."""
        missing: dict[Path, None] = {}
        for path in paths:
            known = len(path)
            while known and path[:known] not in self._nodes and path[:known] not in missing:
                known -= 1
            missing |= dict.fromkeys(path[:end] for end in range(known + 1, len(path) + 1))
        return list(missing)

    def _compute(self, cache: TreeCache, missing: Sequence[Path]) -> None:
        ids = [path[-1] for path in missing]
        check_feed(ids, cache.length, self._engine)
        slots: dict[Path, tuple[int, ...]] = {}
        for at, path in enumerate(missing):
            parent = path[:-1]
            above = slots.get(parent) or (self._nodes[parent].slots if parent else ())
            slots[path] = (*above, cache.length + at)
        depths = [len(path) for path in (*self._nodes, *missing)]
        places = TreePlaces(
            self._trunk,
            [self._trunk + depth - 1 for depth in depths],
            list(slots.values()),
        )
        # What may follow every one of them, wanted or not: a path that is held is never read again.
        found = self._run(Pass(ids, range(len(ids)), places))
        for path, choices in zip(missing, found, strict=True):
            self._nodes[path] = _Node(slots[path], choices)

    def _drop_branches(self, cache: TreeCache) -> None:
        super()._drop_branches(cache)
        self._nodes.clear()
