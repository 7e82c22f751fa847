"""Drafts that were sent and not decided yet: the text rule of the wire contract.

Works on text alone; it knows no tokenizer and no model. Offsets count UTF-8 bytes of the generated
text, special tokens written out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

MEMORY_BYTES = 64 * 1024
"""How far back committed text is remembered, to judge drafts that come late."""

Piece = tuple[bytes, float]


class DraftBuffer:
    """The draft text of one session that lies beyond its committed text.

    One rule for late drafts, drafts sent ahead, and drafts that the verifier overtook: a draft
    replaces what is held from its base on. What it says about text that is committed must be what
    was committed; otherwise it is stale. So is one that leaves a gap, begins inside a character,
    begins further back than is remembered, or is not newer than the last one that was taken.
    """

    def __init__(self, *, max_bytes: int = 4096, max_pieces: int = 256) -> None:
        """Pieces beyond either bound are dropped unseen; a later draft that builds on them is a
        gap. A late draft may say as much again of committed text, or it is stale: what a draft
        costs is bounded, whatever is in it."""
        self._max_bytes = max_bytes
        self._max_pieces = max_pieces
        self._committed_tail = bytearray()
        self._pieces: list[Piece] = []
        self._text = b""
        self.committed_bytes = 0
        """How much text is committed, in bytes."""
        self.ends = False
        """Whether the assistant thinks that the answer ends after `text`."""
        self.last_seq = 0
        """The newest draft that was not stale; 0 before the first."""
        self.stale = 0
        """How many drafts were dropped unread."""

    @property
    def text(self) -> str:
        """Draft text beyond the committed text."""
        return self._text.decode()

    @property
    def held_bytes(self) -> int:
        return len(self._text)

    @property
    def piece_count(self) -> int:
        return len(self._pieces)

    @property
    def pieces(self) -> list[tuple[str, float]]:
        """What is held, piece by piece, each with the log-probability of the assistant's token; of
        a piece that is committed in part, the rest."""
        return [(piece.decode(), logprob) for piece, logprob in self._pieces]

    def offer(
        self, seq: int, base_bytes: int, pieces: Iterable[tuple[str, float]], ends: bool
    ) -> bool:
        """Takes a draft in; False, and counted in `stale`, when it is stale. Of `pieces`, texts
        with log-probabilities, no more than `2 * max_pieces + 1` are looked at."""
        taken = seq > self.last_seq and self._take(base_bytes, pieces, ends)
        if taken:
            self.last_seq = seq
        else:
            self.stale += 1
        return taken

    def commit(self, text: str) -> None:
        """The committed text grew by `text`. Clears what is held when that contradicts it; text
        that covers the draft and goes on beyond its end does not contradict it, and leaves
        nothing."""
        if not text:
            return
        data = text.encode()
        self.committed_bytes += len(data)
        self._committed_tail += data
        del self._committed_tail[:-MEMORY_BYTES]
        if self._text.startswith(data):
            self._hold(_without_head(self._pieces, len(data)), self.ends)
        else:
            self.clear()

    def clear(self) -> None:
        """Forgets what is held; the memory of the committed text stays."""
        self._hold([], ends=False)

    def _take(self, base_bytes: int, pieces: Iterable[tuple[str, float]], ends: bool) -> bool:
        new = self._encoded(pieces)
        ahead = base_bytes - self.committed_bytes
        try:
            kept = self._kept(ahead) if ahead >= 0 else self._rest_of_late(-ahead, new)
            if kept is None:
                return False
            self._hold(chain(kept, new), ends)
        except UnicodeEncodeError:
            return False
        return True

    def _encoded(self, pieces: Iterable[tuple[str, float]]) -> Iterator[Piece]:
        """As they are asked for; of a piece that exceeds every bound, just enough to see that."""
        most = len(self._committed_tail) + self._max_bytes
        for text, logprob in pieces:
            yield text[: most + 1].encode(), logprob

    def _kept(self, ahead: int) -> list[Piece] | None:
        """The held pieces of the first `ahead` bytes; None when they are fewer, or end inside a
        character."""
        if ahead > len(self._text) or _inside_character(self._text, ahead):
            return None
        return _head(self._pieces, ahead)

    def _rest_of_late(self, behind: int, new: Iterator[Piece]) -> list[Piece] | None:
        """Takes the pieces off `new` that say the last `behind` committed bytes. Returns what goes
        beyond them in the last of these; None when they say something else, or in too many
        pieces."""
        since = self._committed_since(behind)
        if since is None:
            return None
        said = 0
        for _ in range(self._max_pieces):
            piece, logprob = next(new, (None, 0.0))
            if piece is None:
                return None
            size = min(len(piece), len(since) - said)
            if not since.startswith(piece[:size], said):
                return None
            said += size
            if said == len(since):
                return [(piece[size:], logprob)] if size < len(piece) else []
        return None

    def _committed_since(self, behind: int) -> bytes | None:
        """The last `behind` bytes; None when they are forgotten or begin inside a character."""
        if behind > len(self._committed_tail):
            return None
        since = bytes(self._committed_tail[-behind:])
        return None if _inside_character(since, 0) else since

    def _hold(self, pieces: Iterable[Piece], ends: bool) -> None:
        """Takes off `pieces` what the bounds allow, and looks at one more at most."""
        held: list[Piece] = []
        size, whole = 0, True
        for piece, logprob in pieces:
            size += len(piece)
            if size > self._max_bytes or len(held) == self._max_pieces:
                whole = False
                break
            held.append((piece, logprob))
        self._pieces = held
        self._text = _join(held)
        self.ends = ends and whole


def _join(pieces: Iterable[Piece]) -> bytes:
    return b"".join(piece for piece, _ in pieces)


def _inside_character(data: bytes, offset: int) -> bool:
    return offset < len(data) and data[offset] & 0xC0 == 0x80


def _head(pieces: Sequence[Piece], size: int) -> list[Piece]:
    """The pieces of the first `size` bytes, the last one cut to fit.

    An empty piece is the start of a character that a later piece completes. At the cut it goes
    with what follows, unless nothing does.
    """
    if size == sum(len(piece) for piece, _ in pieces):
        return list(pieces)
    head: list[Piece] = []
    for piece, logprob in pieces:
        if size == 0:
            break
        head.append((piece[:size], logprob))
        size -= len(head[-1][0])
    return head


def _without_head(pieces: Sequence[Piece], size: int) -> list[Piece]:
    """The pieces beyond the first `size` bytes, the first one cut to fit."""
    for index, (piece, logprob) in enumerate(pieces):
        if size == 0:
            return list(pieces[index:])
        if size < len(piece):
            return [(piece[size:], logprob), *pieces[index + 1 :]]
        size -= len(piece)
    return []
