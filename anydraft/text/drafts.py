"""Drafts that were sent and not decided yet: the text rule of the wire contract.

Works on text alone; it knows no tokenizer and no model. Offsets count UTF-8 bytes of the generated
text, special tokens written out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
        """Pieces beyond either bound are dropped; a later draft that builds on them is a gap."""
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
        self, seq: int, base_bytes: int, pieces: Sequence[tuple[str, float]], ends: bool
    ) -> bool:
        """Takes a draft in; False, and counted in `stale`, when it is stale."""
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

    def _take(self, base_bytes: int, pieces: Sequence[tuple[str, float]], ends: bool) -> bool:
        try:
            new = [(piece.encode(), logprob) for piece, logprob in pieces]
        except UnicodeEncodeError:
            return False
        ahead = base_bytes - self.committed_bytes
        if ahead < 0:
            since = self._committed_since(-ahead)
            if since is None or not _join(new).startswith(since):
                return False
            self._hold(_without_head(new, len(since)), ends)
            return True
        if ahead > len(self._text) or _inside_character(self._text, ahead):
            return False
        self._hold(_head(self._pieces, ahead) + new, ends)
        return True

    def _committed_since(self, behind: int) -> bytes | None:
        """The last `behind` bytes; None when they are forgotten or begin inside a character."""
        if behind > len(self._committed_tail):
            return None
        since = bytes(self._committed_tail[-behind:])
        return None if _inside_character(since, 0) else since

    def _hold(self, pieces: list[Piece], ends: bool) -> None:
        size, count = 0, 0
        for piece, _ in pieces[: self._max_pieces]:
            size += len(piece)
            if size > self._max_bytes:
                break
            count += 1
        self._pieces = pieces[:count]
        self._text = _join(self._pieces)
        self.ends = ends and count == len(pieces)


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
