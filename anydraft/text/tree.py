"""The text tree: what is drafted beyond the committed text of one session, on both nodes.

A draft is a tree of pieces, each the text of one assistant token, hung below another piece or at a
place in the committed text. Committed text moves the root: what contradicts it goes, with all that
hangs below; what agrees stays, a piece that is committed in part included. Works on bytes alone; it
knows no tokenizer and no model.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MEMORY_BYTES = 64 * 1024
"""How far back committed text is remembered, to judge pieces that come late."""
_MEMORY_NODES = 1024
"""How many committed pieces are remembered, for those that were sent to hang below them."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The text of one step of a drafter, at the end of which the verifier may cut."""

    text: bytes
    """Part of a UTF-8 text; it may begin or end inside a character. Empty only when `ends`."""
    logprob: float
    """Natural logarithm of how likely the drafter thinks it is, given what stands before it."""
    ends: bool = False
    """The answer ends here; the text is empty."""


@dataclass(eq=False, slots=True)
class Node:
    """A piece in its place. Read-only to all but its tree."""

    ids: list[int]
    """The first is its own; others came later and say the same in the same place."""
    parent: Node | None
    """None when it hangs at committed text."""
    start: int
    """Where its text begins, in bytes of the generated text."""
    text: bytes
    logprob: float
    """0 or less; minus infinity where a drafter gave no number."""
    ends: bool
    children: list[Node] = field(default_factory=list)

    @property
    def id(self) -> int:
        return self.ids[0]

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class Held(NamedTuple):
    """A node beyond the committed text, as `TextTree.best_first` finds it."""

    node: Node
    logprob: float
    """Of its whole path from the committed text."""
    depth: int
    """Nodes of that path before it."""


class TextTree:
    """One session's pieces beyond its committed text.

    One rule for pieces that come late, ahead, or beside what was committed: a piece is taken when
    all of its path agrees with the committed text. It is dropped when it contradicts it, begins
    further back than is remembered, hangs where no text is, hangs below something that was dropped
    or never came, or finds no room; so is everything below it. Ids only grow.
    """

    def __init__(self, *, max_pieces: int, max_bytes: int) -> None:
        """Bounds on what is held; each piece counts, also when it says what another one does."""
        self._max_pieces = max_pieces
        self._max_bytes = max_bytes
        self._tail = bytearray()
        self._nodes: dict[int, Node] = {}
        self._passed: OrderedDict[int, int] = OrderedDict()
        """Of committed pieces: where they end."""
        self._num_bytes = 0
        self.roots: list[Node] = []
        """Held nodes that begin in, or right behind, the committed text. Read-only."""
        self.committed_bytes = 0
        """How much text is committed, in bytes."""
        self.newest = 0
        """The largest id that ever came, taken or not; 0 before the first."""

    @property
    def num_pieces(self) -> int:
        """How many are held."""
        return len(self._nodes)

    @property
    def room(self) -> int:
        """How many more pieces fit, as far as their number goes."""
        return self._max_pieces - len(self._nodes)

    def __contains__(self, node: Node) -> bool:
        """Whether it is held."""
        return self._nodes.get(node.id) is node

    def hang(self, piece: Piece, below: Node | None = None) -> Node | None:
        """Adds a piece of one's own under the next id, below a held node, or at the end of the
        committed text. Returns its node, or the one that already says the same there; None when
        there is no room."""
        start = self.committed_bytes if below is None else below.end
        siblings = self.roots if below is None else below.children
        if (same := _same(siblings, start, piece.text, piece.ends)) is not None:
            return same
        return self.add(self.newest + 1, below.id if below else 0, self.committed_bytes, piece)

    def add(self, piece_id: int, parent_id: int, base_bytes: int, piece: Piece) -> Node | None:
        """Takes a piece in: below the piece `parent_id`, or, where that is 0, at `base_bytes` of
        the generated text. Returns its node; None when it was dropped, or is committed already."""
        if piece_id <= self.newest:
            return None
        self.newest = piece_id
        if bool(piece.text) == piece.ends:
            return None
        parent = self._nodes.get(parent_id)
        start = self._start(parent_id, base_bytes) if parent is None else parent.end
        if start is None or not self._agrees(start, piece.text, piece.ends):
            return None
        if parent is not None and parent.ends:
            return None
        node = Node([piece_id], parent, start, piece.text, _sound(piece.logprob), piece.ends)
        if self._is_past(node):
            self._remember(node)
            return None
        return self._hold(node, self.roots if parent is None else parent.children)

    def commit(self, data: bytes) -> None:
        """The committed text grew by `data`."""
        if not data:
            return
        self.committed_bytes += len(data)
        self._tail += data
        del self._tail[:-MEMORY_BYTES]
        waiting, self.roots = deque(self.roots), []
        while waiting:
            node = waiting.popleft()
            if not self._agrees(node.start, node.text, node.ends):
                self._drop(node)
            elif self._is_past(node):
                self._forget(node)
                self._remember(node)
                waiting.extend(node.children)
            else:
                node.parent = None
                self.roots.append(node)

    def rest(self, node: Node) -> bytes:
        """What a node says beyond the committed text."""
        return node.text[max(self.committed_bytes - node.start, 0) :]

    def path(self, node: Node) -> list[Node]:
        """From the committed text to a held node, which is the last."""
        path = [node]
        while (parent := path[-1].parent) is not None:
            path.append(parent)
        path.reverse()
        return path

    def best_first(self) -> Iterator[Held]:
        """All that is held, by falling probability of the path; a node never before its parent."""
        heap = [(-node.logprob, node.id, 0, node) for node in self.roots]
        heapq.heapify(heap)
        while heap:
            against, _, depth, node = heapq.heappop(heap)
            yield Held(node, -against, depth)
            for child in node.children:
                heapq.heappush(heap, (against - child.logprob, child.id, depth + 1, child))

    def _start(self, parent_id: int, base_bytes: int) -> int | None:
        """Where a piece begins that hangs at committed text."""
        if parent_id:
            return self._passed.get(parent_id)
        return base_bytes if base_bytes <= self.committed_bytes else None

    def _agrees(self, start: int, text: bytes, ends: bool) -> bool:
        """Whether a piece there says what is committed, as far as that goes."""
        behind = self.committed_bytes - start
        if behind <= 0:
            return True
        if behind > len(self._tail) or ends:
            return False
        return self._tail.startswith(text[:behind], len(self._tail) - behind)

    def _is_past(self, node: Node) -> bool:
        return node.end <= self.committed_bytes and not node.ends

    def _hold(self, node: Node, siblings: list[Node]) -> Node | None:
        if len(self._nodes) >= self._max_pieces:
            return None
        if (same := _same(siblings, node.start, node.text, node.ends)) is not None:
            same.ids.append(node.id)
            self._nodes[node.id] = same
            return same
        if self._num_bytes + len(node.text) > self._max_bytes:
            return None
        siblings.append(node)
        self._nodes[node.id] = node
        self._num_bytes += len(node.text)
        return node

    def _drop(self, node: Node) -> None:
        stack = [node]
        while stack:
            node = stack.pop()
            self._forget(node)
            stack.extend(node.children)

    def _forget(self, node: Node) -> None:
        for piece_id in node.ids:
            del self._nodes[piece_id]
        self._num_bytes -= len(node.text)

    def _remember(self, node: Node) -> None:
        for piece_id in node.ids:
            self._passed[piece_id] = node.end
        while len(self._passed) > _MEMORY_NODES:
            self._passed.popitem(last=False)


def _same(siblings: list[Node], start: int, text: bytes, ends: bool) -> Node | None:
    """The one that says this in this place already."""
    for node in siblings:
        if (node.start, node.text, node.ends) == (start, text, ends):
            return node
    return None


def _sound(logprob: float) -> float:
    """What orders paths must be a number, and none is likelier than its parent."""
    return -math.inf if math.isnan(logprob) else min(logprob, 0.0)
