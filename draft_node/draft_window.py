"""What a session has drafted beyond its committed text, and how much of it was sent.

The sender's half of the text rule in `verification.proto`; knows no tokenizer and no model.
"""

from __future__ import annotations

import math
from itertools import islice

from anydraft.errors import InternalError
from anydraft.v1.verification_pb2 import Draft, DraftPiece
from draft_node.drafters.base import Piece

_MAX_PIECE_BYTES = 16 * 1024
"""A message that exceeds gRPC's limit would end the call, and the answer with it."""


class DraftWindow:
    """Pieces in order, the committed ones forgotten."""

    def __init__(self) -> None:
        self._pieces: list[tuple[bytes, float]] = []
        self._num_sent = 0
        self._ends_sent = False
        self._last_seq = 0
        self.committed_bytes = 0
        """How much text is committed, in bytes."""
        self.ends = False
        """Whether the draft ends with the end of the answer."""

    @property
    def num_pieces(self) -> int:
        return len(self._pieces)

    @property
    def num_sent(self) -> int:
        return self._num_sent

    @property
    def last_seq(self) -> int:
        """The newest draft that was taken; 0 before the first."""
        return self._last_seq

    @property
    def unsent(self) -> bool:
        return self._num_sent < len(self._pieces) or self.ends > self._ends_sent

    @property
    def reach(self) -> float:
        """How likely all of the draft is, by the drafter's own probabilities."""
        return math.exp(sum(logprob for _, logprob in self._pieces))

    @property
    def expected(self) -> float:
        """How many of the pieces will stand, by the drafter's own probabilities."""
        total, reach = 0.0, 1.0
        for _, logprob in self._pieces:
            reach *= math.exp(logprob)
            total += reach
        return total

    def push(self, piece: Piece) -> None:
        """Raises InternalError for a piece that cannot be sent."""
        if piece.ends:
            self.ends = True
        else:
            self._pieces.append((_sendable_bytes(piece), min(piece.logprob, 0.0)))

    def commit(self, text: str) -> bool:
        """Text was committed. True when the draft holds and goes on behind it; False when it is
        contradicted or overtaken, and nothing is left of it."""
        data = text.encode()
        self.committed_bytes += len(data)
        if not data:
            return True
        if b"".join(piece for piece, _ in self._pieces).startswith(data):
            self._drop(len(data))
            return True
        self._pieces.clear()
        self._num_sent, self.ends, self._ends_sent = 0, False, False
        return False

    def resend_beyond(self, held_bytes: int) -> None:
        """The verifier holds only this much beyond the committed text: the rest was lost."""
        count = 0
        for piece, _ in self._pieces:
            if len(piece) > held_bytes:
                break
            held_bytes -= len(piece)
            count += 1
        if count < self._num_sent:
            self._num_sent, self._ends_sent = count, False

    def take(self, max_pieces: int) -> Draft | None:
        """What was not sent yet, as far as at most `max_pieces` beyond the committed text go."""
        if max_pieces <= 0 or not self.unsent:
            return None
        end = max(min(max_pieces, len(self._pieces)), self._num_sent)
        ends = self.ends and end == len(self._pieces)
        if end == self._num_sent and ends <= self._ends_sent:
            return None
        before = sum(len(piece) for piece, _ in islice(self._pieces, self._num_sent))
        pieces = [
            DraftPiece(text=piece.decode(), logprob=logprob)
            for piece, logprob in self._pieces[self._num_sent : end]
        ]
        self._last_seq += 1
        self._num_sent, self._ends_sent = end, ends
        return Draft(
            seq=self._last_seq,
            base_bytes=self.committed_bytes + before,
            pieces=pieces,
            ends=ends,
        )

    def nothing(self) -> Draft:
        """A draft that says: nothing follows the committed text, do not wait for it."""
        self._last_seq += 1
        return Draft(seq=self._last_seq, base_bytes=self.committed_bytes)

    def _drop(self, size: int) -> None:
        # An empty piece is the start of a character: at the cut it stays with what completes it, as
        # it does on the verifier.
        count = 0
        for piece, _ in self._pieces:
            if not size or len(piece) > size:
                break
            size -= len(piece)
            count += 1
        del self._pieces[:count]
        self._num_sent = max(self._num_sent - count, 0)
        if size:
            piece, logprob = self._pieces[0]
            self._pieces[0] = (piece[size:], logprob)


def _sendable_bytes(piece: Piece) -> bytes:
    try:
        data = piece.text.encode()
    except UnicodeEncodeError:
        problem = "is no text"
    else:
        if len(data) <= _MAX_PIECE_BYTES and math.isfinite(piece.logprob):
            return data
        problem = f"has {len(data)} bytes and the log-probability {piece.logprob}"
    raise InternalError(
        f"A drafter's piece {problem}. Report this as a bug of that drafter.",
        reason="DRAFTER_FAILED",
    )
