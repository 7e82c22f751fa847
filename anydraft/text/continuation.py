"""Ids for text that follows ids which are already fixed.

Encoding the text by itself is wrong: tokenizers add a space in front of a text, merge across its
start, or split by what stands before. So a window of the last ids is written out as text and
encoded together with what follows. When the window's ids come back unchanged, the rest is the
continuation. When they do not, because the boundary would have merged or because the ids are not
those that an encoder would have chosen, the text is encoded behind an *anchor*: a short text whose
ids are known and which does not merge with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from anydraft.text.tokenizer import TextTokenizer

WINDOW_TOKENS = 32
WINDOW_BYTES = 512
"""How far back a safe boundary is looked for; a token of blanks may have a hundred bytes."""

_ANCHOR_TEXTS = ("\n", "a", ".", "0", " ", "。")
_WHITESPACE = b" \t\n\r\x0b\x0c"


@dataclass(frozen=True)
class _Anchor:
    text: str
    ids: list[int]


class Continuation:
    """Encodes text as the continuation of fixed ids. Holds no state; costs do not grow with the
    number of fixed ids."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        anchors = [_Anchor(text, tokenizer.encode(text)) for text in _ANCHOR_TEXTS]
        usable = [a for a in anchors if a.ids and tokenizer.unknown_id not in a.ids]
        words = [a for a in usable if not a.text.isspace()]
        spaces = [a for a in usable if a.text.isspace()]
        # Words do not merge with whitespace behind them, nor newlines with what is none.
        self._before_space = (*words, *spaces)
        self._before_word = (*spaces[:1], *words, *spaces[1:])

    def encode(self, context: Sequence[int], text: bytes, *, unfinished: int = 0) -> list[int]:
        """The ids of `text` behind the ids `context`; empty when there is no way to tell.

        `text` is UTF-8, and begins inside a character when `context` ends with `unfinished` bytes
        of one. The ids stand for `text` as far as the tokenizer can write it.
        """
        best: list[int] = []
        best_size = -1
        for ids in self._attempts(context, text, unfinished):
            size = self._written(ids, text) if ids else -1
            if size == len(text):
                return ids
            if size > best_size:
                best, best_size = ids, size
        return best

    def _written(self, ids: list[int], text: bytes) -> int:
        """How many leading bytes of `text` the ids stand for."""
        size = 0
        for token_id in ids:
            piece = self._tokenizer.token_bytes(token_id)
            if not text.startswith(piece, size):
                break
            size += len(piece)
        return size

    def _attempts(
        self, context: Sequence[int], text: bytes, unfinished: int
    ) -> Iterator[list[int]]:
        window = list(context[-WINDOW_TOKENS:])
        pieces = [self._tokenizer.token_bytes(token_id) for token_id in window]
        excess = _tokens_beyond(pieces, WINDOW_BYTES)
        window, pieces = window[excess:], pieces[excess:]
        for start in self._window_starts(window, pieces, unfinished):
            yield self._behind_window(window[start:], b"".join(pieces[start:]) + text)
        yield from self._alone(text)

    def _window_starts(
        self, window: list[int], pieces: list[bytes], unfinished: int
    ) -> Iterator[int]:
        """Where to begin writing out: at the last safe boundary, else as far back as allowed, and
        then as late as possible."""
        latest = _start_of_last(pieces, max(unfinished, 1))
        if latest is None:
            return
        start = self._last_boundary(window, pieces, latest)
        if start is None:
            start = next(k for k in range(latest + 1) if _starts_character(pieces[k]))
        yield start
        if start != latest:
            yield latest

    def _last_boundary(self, window: list[int], pieces: list[bytes], latest: int) -> int | None:
        for k in range(latest, -1, -1):
            if self._tokenizer.is_special(window[k]):
                return k
            if pieces[k][:1] in _WHITESPACE and pieces[k]:
                before = pieces[k - 1] if k else b""
                if before[-1:] not in _WHITESPACE or not before:
                    return k
        return None

    def _behind_window(self, window: list[int], whole: bytes) -> list[int]:
        try:
            text = whole.decode()
        except UnicodeDecodeError:
            return []
        if self._tokenizer.is_special(window[0]):
            ids = self._tokenizer.encode(text)
            if ids[: len(window)] == window:
                return ids[len(window) :]
        for anchor in self._anchors_for(text)[:2]:
            ids = self._behind_anchor(anchor, text)
            if ids[: len(window)] == window:
                return ids[len(window) :]
            if ids:
                break
        return []

    def _alone(self, data: bytes) -> Iterator[list[int]]:
        head, data = _split_at_character(data)
        finishing = [self._tokenizer.byte_id(byte) for byte in head]
        known = [token_id for token_id in finishing if token_id is not None]
        if len(known) < len(finishing):
            return
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return
        if not text:
            yield known
            return
        for anchor in self._anchors_for(text):
            ids = self._behind_anchor(anchor, text)
            if ids and (not known or data.startswith(self._tokenizer.token_bytes(ids[0]))):
                yield known + ids
        yield known

    def _anchors_for(self, text: str) -> tuple[_Anchor, ...]:
        return self._before_space if text[0].isspace() else self._before_word

    def _behind_anchor(self, anchor: _Anchor, text: str) -> list[int]:
        ids = self._tokenizer.encode(anchor.text + text)
        count = len(anchor.ids)
        return ids[count:] if ids[:count] == anchor.ids else []


def _tokens_beyond(pieces: list[bytes], limit: int) -> int:
    """How many leading tokens to leave out so that the rest, or the last one, fits `limit`."""
    size = sum(map(len, pieces))
    count = 0
    while size > limit and count < len(pieces) - 1:
        size -= len(pieces[count])
        count += 1
    return count


def _starts_character(piece: bytes) -> bool:
    return bool(piece) and piece[0] & 0xC0 != 0x80


def _start_of_last(pieces: list[bytes], count: int) -> int | None:
    """The last token that begins a character and has at least `count` bytes from it on."""
    size = 0
    for k in range(len(pieces) - 1, -1, -1):
        size += len(pieces[k])
        if size >= count and _starts_character(pieces[k]):
            return k
    return None


def _split_at_character(data: bytes) -> tuple[bytes, bytes]:
    """The bytes that finish a character begun before `data`, and the rest."""
    size = 0
    while size < len(data) and data[size] & 0xC0 == 0x80:
        size += 1
    return data[:size], data[size:]
