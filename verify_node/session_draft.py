"""What is drafted for one session, as text: by the draft node, and by prompt lookup beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from anydraft.text.alignment import Branch, DraftAligner
from anydraft.text.lookup import PromptLookup
from anydraft.text.tree import Node, Piece, TextTree
from anydraft.v1.verification_pb2 import Draft
from verify_node.target import DraftToken, Offer

MAX_CREDIT_PIECES = 128
"""Draft pieces that a session holds beyond its committed text: ten passes of a drafter, some 100 ms
of drafting ahead, with a dozen pieces each."""
MAX_CREDIT_BYTES = 4096
_LEAST_BRANCHES = 32
_MOST_BRANCHES = 64
"""How many of the likeliest pieces are looked at; in between, `_BRANCHES_PER_TOKEN` for each draft
token that the target checked last time, since that is what it makes of its costs."""
_BRANCHES_PER_TOKEN = 2
_BRIEF_BRANCHES = 6
"""An alignment of as many takes a tenth of a millisecond."""
_DRAFT_NODE, _LOOKUP = 0, 1


@dataclass(frozen=True, slots=True)
class DraftSnapshot:
    """What is drafted at one moment, and what it follows. Its own; needs no lock."""

    num_committed: int
    context: Sequence[int]
    """The last committed ids, as many as an alignment may look at."""
    pending: bytes
    """Bytes of committed ids that are not announced yet."""
    branches: Sequence[Branch]
    newest_piece: int

    def offer(self, aligner: DraftAligner, end_id: int | None) -> Offer:
        """What it means in ids of the target."""
        candidates = aligner.align(self.context, self.pending, self.branches, end_id)
        tokens = tuple(DraftToken(c.token_id, c.reach, c.parent) for c in candidates)
        return Offer(self.num_committed, tokens, self.newest_piece)


class SessionDraft:
    """Not thread-safe."""

    def __init__(self, lookup: PromptLookup | None) -> None:
        """`lookup`: drafts beside the draft node, from the text of the prompt."""
        self._tree = TextTree(max_pieces=MAX_CREDIT_PIECES, max_bytes=MAX_CREDIT_BYTES)
        self._lookup = lookup
        self._copied: Sequence[Branch] = ()
        self._looked_at = _LEAST_BRANCHES
        self.stale_pieces = 0
        """How many were dropped when they came."""

    @property
    def committed_bytes(self) -> int:
        return self._tree.committed_bytes

    @property
    def holds_any(self) -> bool:
        """Whether anything is drafted beyond the committed text."""
        return self._tree.num_pieces > 0 or bool(self._copied)

    def take(self, draft: Draft) -> bool:
        """Whether something of it is held now. Looks at no more of it than could be."""
        looked_at = islice(draft.pieces, 2 * MAX_CREDIT_PIECES)
        taken = 0
        for index, sent in enumerate(looked_at):
            piece = Piece(sent.text, sent.logprob, sent.ends)
            piece_id = draft.first_piece + index
            node = self._tree.add(piece_id, sent.parent, draft.base_bytes, piece)
            taken += node is not None
        self.stale_pieces += len(draft.pieces) - taken
        return taken > 0

    def commit(self, text: bytes, num_checked: int) -> None:
        """The announced text grew, in a step that checked so many draft tokens."""
        looked_at = _LEAST_BRANCHES + _BRANCHES_PER_TOKEN * num_checked
        self._looked_at = min(looked_at, _MOST_BRANCHES)
        self._tree.commit(text)
        if self._lookup is not None:
            self._lookup.commit(text)
            self._copied = _chain(self._lookup.continuation(), _LOOKUP)

    def snapshot(
        self, num_committed: int, context: Sequence[int], pending: bytes, *, brief: bool = False
    ) -> DraftSnapshot:
        """`brief`: with no more than a step among many sessions may check."""
        held = _likeliest(self._tree, _BRIEF_BRANCHES if brief else self._looked_at)
        newest = self._tree.newest if held else 0
        copied = self._copied[: _BRIEF_BRANCHES if brief else None]
        copied = [_behind(branch, len(held)) for branch in copied]
        return DraftSnapshot(num_committed, context, pending, [*held, *copied], newest)


def _likeliest(tree: TextTree, most: int) -> list[Branch]:
    branches: list[Branch] = []
    places: dict[Node, int] = {}
    for held in islice(tree.best_first(), most):
        node = held.node
        parent = -1 if node.parent is None else places[node.parent]
        places[node] = len(branches)
        branches.append(Branch(tree.rest(node), parent, held.logprob, node.ends, _DRAFT_NODE))
    return branches


def _chain(pieces: Sequence[Piece], drafter: int) -> list[Branch]:
    branches: list[Branch] = []
    logprob = 0.0
    for index, piece in enumerate(pieces):
        logprob += piece.logprob
        branches.append(Branch(piece.text, index - 1, logprob, piece.ends, drafter))
    return branches


def _behind(branch: Branch, count: int) -> Branch:
    """A branch of a tree of its own that stands behind `count` others."""
    parent = -1 if branch.parent < 0 else branch.parent + count
    return Branch(branch.text, parent, branch.logprob, branch.ends, branch.drafter)
