"""What of a session's tree was sent, and what goes next.

The sender's half of the wire's rules in `verification.proto`: every piece once, under an id of the
wire; below a piece that was sent, or at the committed text with what it says beyond that.
"""

from __future__ import annotations

from anydraft.text.tree import Node, TextTree
from anydraft.v1.verification_pb2 import Draft, DraftPiece

_LEAST_LOGPROB = -100.0
"""Stands for less on the wire, where it must be a finite float."""


class Outbox:
    """Of one tree. What was sent counts against the credit until it is committed or contradicted:
    the verifier, which hears of commits first, never holds more."""

    def __init__(self, tree: TextTree) -> None:
        self._tree = tree
        self._sent: dict[Node, int] = {}
        """Held nodes that were sent, by their id on the wire."""
        self._held_bytes = 0
        self._newest = 0

    def forget_decided(self) -> None:
        """Text was committed: what the tree no longer holds does not count any more."""
        decided = [node for node in self._sent if node not in self._tree]
        for node in decided:
            del self._sent[node]
            self._held_bytes -= len(node.text)

    def forget_sent(self) -> None:
        """Another verifier is to have it all. Ids of the wire go on."""
        self._sent.clear()
        self._held_bytes = 0

    def take(self, credit_pieces: int, credit_bytes: int) -> Draft | None:
        """What was not sent yet, the likeliest first, as far as the credit goes; None when that is
        nothing."""
        room = credit_pieces - len(self._sent)
        if room <= 0 or len(self._sent) == self._tree.num_pieces:
            return None
        pieces: list[DraftPiece] = []
        first = self._newest + 1
        for held in self._tree.best_first():
            if len(pieces) == room:
                break
            node = held.node
            if node in self._sent or not self._fits(node, credit_bytes):
                continue
            pieces.append(self._piece(node))
            self._newest += 1
            self._sent[node] = self._newest
            self._held_bytes += len(node.text)
        if not pieces:
            return None
        return Draft(first_piece=first, base_bytes=self._tree.committed_bytes, pieces=pieces)

    def nothing(self, *, needs_ms: float = 0.0) -> Draft:
        """A draft that says: nothing follows the committed text, do not wait for it. `needs_ms` is
        `Draft.needs_ms`."""
        base_bytes = self._tree.committed_bytes
        return Draft(first_piece=self._newest + 1, base_bytes=base_bytes, needs_ms=needs_ms)

    def _fits(self, node: Node, credit_bytes: int) -> bool:
        if node.parent is not None and node.parent not in self._sent:
            return False
        return self._held_bytes + len(node.text) <= credit_bytes

    def _piece(self, node: Node) -> DraftPiece:
        return DraftPiece(
            text=self._tree.rest(node),
            logprob=max(node.logprob, _LEAST_LOGPROB),
            parent=0 if node.parent is None else self._sent[node.parent],
            ends=node.ends,
        )
