"""Draft text to target ids: a tree of text becomes a tree of candidates."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import NamedTuple

from anydraft.text.continuation import WINDOW_TOKENS
from anydraft.text.tokenizer import TextTokenizer
from anydraft.text.units import UNIT_START, Budget, EncodedUnit, UnitEncoder

ALIGNED_BYTES = 2048
"""How much text one call encodes anew: a few milliseconds whatever the text and the tokenizer
are. What is left out comes in the next call, since what was encoded is remembered."""
MAX_CANDIDATES = 64
"""More than any step checks."""
_BEGUN_BYTES = 64
"""A longer unit would be encoded anew for each of the paths that go on with it."""


class Branch(NamedTuple):
    """A piece of a draft tree, as it stands beyond the announced text."""

    text: bytes
    parent: int
    """The index of the branch below which it hangs, which comes first; -1: the announced text."""
    logprob: float
    """Natural logarithm of how likely it and all before it on its path are."""
    ends: bool
    """The answer ends there."""
    drafter: int = 0
    """Who says so."""


class Candidate(NamedTuple):
    """A target id that the draft suggests."""

    token_id: int
    reach: float
    """How likely it and all before it on its path are, in [0, 1]; never more than its parent."""
    parent: int
    """The index of the candidate that it follows; -1: the committed ids."""


class _Token:
    """A candidate in the making."""

    __slots__ = ("children", "sources")

    def __init__(self) -> None:
        self.sources: set[int] = set()
        """The branches in which it ends."""
        self.children: dict[int, _Token] = {}


class _Tip(NamedTuple):
    """How far the text of a path is aligned."""

    token: _Token
    """The end of its whole units."""
    is_first: bool
    """Whether there are none yet: `rest` began before the path."""
    rest: bytes
    """The unit that goes on."""
    marks: tuple[tuple[int, int], ...]
    """Where branches end in `rest`, and which."""


class DraftAligner:
    """Turns draft text into ids of one tokenizer. What a call encodes anew is bounded, however long
    the session is. Safe to share between threads."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._units = UnitEncoder(tokenizer)

    def align(
        self,
        committed_ids: Sequence[int],
        pending: bytes,
        branches: Sequence[Branch],
        end_id: int | None = None,
    ) -> list[Candidate]:
        """Candidates behind `committed_ids`, by falling reach, a parent before its children and no
        two children of one parent with the same id. Never raises for a text.

        Branches begin at the end of the announced text, so they cover `pending`, the bytes of the
        committed ids that are not announced. The bytes of each path of candidates, joined, are
        exactly what follows `pending` on some path of branches, as far as the tokenizer writes it
        as it is. The last one of a path may be cut short where the branches end (" wor" of
        " world"). `end_id` stands for the end of the answer, where there is such an id.

        Every path is cut into tokens by itself, and common beginnings are merged. A token is
        reached when one of the branches in which it ends is: their likelihoods are added, since no
        two of them are on one path. Of several drafters that say the same, the surest counts.
        """
        alignment = _Alignment(self._tokenizer, self._units, committed_ids, pending, branches)
        alignment.run(end_id)
        return alignment.candidates()


class _Alignment:
    """One call of `DraftAligner.align`."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        units: UnitEncoder,
        committed_ids: Sequence[int],
        pending: bytes,
        branches: Sequence[Branch],
    ) -> None:
        self._units = units
        self._context = tuple(committed_ids[-WINDOW_TOKENS:])
        self._pending = pending
        self._branches = branches
        self._reaches = [math.exp(min(branch.logprob, 0.0)) for branch in branches]
        self._budget = Budget(ALIGNED_BYTES)
        self._begun = _unit_begun(tokenizer, self._context)
        self.root = _Token()

    def run(self, end_id: int | None) -> None:
        followed = {branch.parent for branch in self._branches if not branch.ends}
        said = self._begun.text
        start = _Tip(self.root, True, said[: len(said) - len(self._pending)], ())
        tips: list[_Tip | None] = []
        for index, branch in enumerate(self._branches):
            tip = start if branch.parent < 0 else tips[branch.parent]
            if tip is not None and branch.ends:
                token = self._finish(tip)
                if token is not None and end_id is not None:
                    self._meet(token, end_id, index)
                tip = None
            elif tip is not None:
                tip = self._grow(tip, branch.text, index)
                if tip is not None and index not in followed:
                    self._finish(tip)
            tips.append(tip)

    def _grow(self, tip: _Tip, text: bytes, index: int) -> _Tip | None:
        """The tip with a branch more; None when the tokenizer does not write that."""
        rest = tip.rest + text
        marks = (*tip.marks, (len(rest), index))
        token, is_first, start = tip.token, tip.is_first, 0
        if b" " in text or tip.rest.endswith(b" "):
            searched = max(len(tip.rest) - 1, len(self._begun.text) if is_first else 0)
            for found in UNIT_START.finditer(rest, searched):
                unit = rest[start : found.start()]
                walked = self._walk(token, unit, marks, start, is_first)
                if walked is None:
                    return None
                token, is_first, start = walked, False, found.start()
            if start:
                marks = tuple((end - start, index) for end, index in marks if end > start)
        return _Tip(token, is_first, rest[start:], marks)

    def _finish(self, tip: _Tip) -> _Token | None:
        """Where a path ends that says no more; None when that is inside a character, or when the
        tokenizer does not write it."""
        unit = _whole_characters(tip.rest)
        token = self._walk(tip.token, unit, tip.marks, 0, tip.is_first)
        return token if unit == tip.rest else None

    def _walk(
        self,
        token: _Token,
        unit: bytes,
        marks: tuple[tuple[int, int], ...],
        start: int,
        is_first: bool,
    ) -> _Token | None:
        """Goes down the tokens of a unit, which begins `start` bytes before the marks say."""
        if is_first:
            encoded, skipped = self._first(unit)
        else:
            encoded, skipped = self._units.encode(unit, self._budget), 0
        if encoded is None:
            return None
        position = 0
        for unit_token in encoded.tokens:
            end = start + skipped + unit_token.end
            while marks[position][0] < end:
                position += 1
            token = self._meet(token, unit_token.token_id, marks[position][1])
        return token if encoded.is_whole else None

    def _first(self, unit: bytes) -> tuple[EncodedUnit | None, int]:
        """The ids of a unit that may have begun before, behind those that are committed, and where
        in it they begin to count."""
        ids, prefix = self._begun.ids, self._begun.text or self._pending
        if not unit.startswith(prefix):
            return None, 0
        going_on: EncodedUnit | None = None
        if ids and (encoded := self._units.encode(unit, self._budget)) is not None:
            tokens = encoded.tokens
            if tuple(token.token_id for token in tokens[: len(ids)]) == ids:
                going_on = EncodedUnit(tokens[len(ids) :], encoded.is_whole)
                if going_on.is_whole:
                    return going_on, 0
        text = unit[len(prefix) :]
        behind = self._units.encode_behind(self._context, text, len(self._pending), self._budget)
        if going_on is not None and (behind is None or len(going_on.tokens) > len(behind.tokens)):
            return going_on, 0
        return behind, len(prefix)

    def _meet(self, token: _Token, token_id: int, source: int) -> _Token:
        child = token.children.get(token_id)
        if child is None:
            child = token.children[token_id] = _Token()
        child.sources.add(source)
        return child

    def reach(self, token: _Token) -> float:
        """Of the surest drafter."""
        if len(token.sources) == 1:
            return self._reaches[next(iter(token.sources))]
        sums: dict[int, float] = {}
        for source in token.sources:
            drafter = self._branches[source].drafter
            sums[drafter] = sums.get(drafter, 0.0) + self._reaches[source]
        return max(sums.values())

    def candidates(self) -> list[Candidate]:
        candidates: list[Candidate] = []
        heap: list[tuple[float, int, int, int, _Token]] = []
        number, token, most, index = 0, self.root, 1.0, -1
        while True:
            for token_id, child in token.children.items():
                number += 1
                reach = min(self.reach(child), most)
                heapq.heappush(heap, (-reach, number, token_id, index, child))
            if not heap or len(candidates) == MAX_CANDIDATES:
                return candidates
            against, _, token_id, parent, token = heapq.heappop(heap)
            most, index = -against, len(candidates)
            candidates.append(Candidate(token_id, most, parent))


class _Begun(NamedTuple):
    ids: tuple[int, ...]
    text: bytes


def _unit_begun(tokenizer: TextTokenizer, context: Sequence[int]) -> _Begun:
    """The unit that committed ids end in; nothing when it did not begin with a token nearby."""
    text = b""
    for index in range(len(context) - 1, 0, -1):
        text = tokenizer.token_bytes(context[index]) + text
        before = tokenizer.token_bytes(context[index - 1])
        if len(text) > _BEGUN_BYTES:
            break
        if text[:1] == b" " and UNIT_START.match(before[-1:] + text, 1):
            return _Begun(tuple(context[index:]), text)
    return _Begun((), b"")


def _whole_characters(data: bytes) -> bytes:
    """Without the start of a character at its end."""
    start = len(data)
    while start and len(data) - start < 3 and data[start - 1] & 0xC0 == 0x80:
        start -= 1
    if not start or data[start - 1] < 0xC0:
        return data
    lead = data[start - 1]
    size = 2 + (lead >= 0xE0) + (lead >= 0xF0)
    return data if len(data) - start + 1 >= size else data[: start - 1]
