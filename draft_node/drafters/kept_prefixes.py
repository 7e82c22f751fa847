"""What sessions have read, kept when they end: a chat's next turn begins with all of it.

A state is moved to the session that goes on from it, never copied, so a node holds at most one for
each session and those that are kept. Used on the drafting thread alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anydraft.text.common_prefix import common_prefix
from draft_node.engines.base import AssistantState

DEFAULT_PREFIX_SESSIONS = 4
MIN_PREFIX_TOKENS = 16
"""Less is read again in one pass."""


@dataclass(eq=False, frozen=True, slots=True)
class _Kept:
    tenant: str
    ids: tuple[int, ...]
    """What the state's trunk holds."""
    state: AssistantState


class KeptPrefixes:
    """At most `limit` of them; the least recently used goes first. Owns their states."""

    def __init__(self, limit: int = DEFAULT_PREFIX_SESSIONS) -> None:
        self._limit = limit
        self._kept: list[_Kept] = []
        """The least recently used first."""

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, tenant: str, ids: Sequence[int], state: AssistantState) -> None:
        """Takes over a state whose trunk holds `ids`, or closes it, where that is too little. What
        it holds as well is not kept twice."""
        if len(ids) < MIN_PREFIX_TOKENS or self._limit < 1:
            state.close()
            return
        try:
            # What was tried out behind it is of no use to anybody.
            state.truncate(len(ids))
        except BaseException:
            state.close()
            raise
        new = _Kept(tenant, tuple(ids), state)
        for kept in self._of(tenant):
            if common_prefix(kept.ids, new.ids) == len(kept.ids):
                self._drop(kept)
        self._kept.append(new)
        while len(self._kept) > self._limit:
            self._drop(self._kept[0])

    def take(
        self, tenant: str, ids: Sequence[int]
    ) -> tuple[AssistantState, tuple[int, ...]] | None:
        """The state that holds most of how `ids` begin, and all that its trunk holds; the caller
        owns it. None where nobody has read enough of it. A state of which most is of no use here
        stays for whoever it is of use to."""
        best: _Kept | None = None
        most = MIN_PREFIX_TOKENS - 1
        for kept in self._of(tenant):
            same = common_prefix(kept.ids, ids)
            if same > most and 2 * same >= len(kept.ids):
                best, most = kept, same
        if best is None:
            return None
        self._kept.remove(best)
        return best.state, best.ids

    def _of(self, tenant: str) -> list[_Kept]:
        return [kept for kept in self._kept if kept.tenant == tenant]

    def _drop(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        kept.state.close()
