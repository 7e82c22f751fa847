"""Ids to text as they come, whole characters only, equal to decoding them all at once."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from anydraft.text.tokenizer import TextTokenizer

HELD_BYTES = 64
"""How long a run of byte-fallback tokens is held before its whole characters are announced."""


class StreamingDetokenizer:
    """Announces the text of ids in running text.

    All that `push` and `flush` returned equals what the ids add to the tokenizer's own decoding,
    U+FFFD for invalid bytes included: one for each maximal invalid part in byte-level tokenizers,
    and one for each byte of a run of byte-fallback tokens that is not valid as a whole. Such a run
    is therefore held until it ends, or exceeds HELD_BYTES: past that, text that flows counts for
    more than how a broken run is marked.

    `keep_special=True` gives the internal text that both nodes agree on; False what a user sees.
    """

    def __init__(self, tokenizer: TextTokenizer, *, keep_special: bool) -> None:
        self._tokenizer = tokenizer
        self._keep_special = keep_special
        self._bytes = _ByteRun() if tokenizer.byte_fallback else _ByteStream()

    @property
    def pending(self) -> bytes:
        """Bytes of ids that were pushed but not announced: the start of a character."""
        return self._bytes.pending

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids complete."""
        return "".join(map(self._push_one, ids))

    def flush(self) -> str:
        """What is left when no more ids come, U+FFFD for a character that stayed unfinished."""
        return self._bytes.end()

    def _push_one(self, token_id: int) -> str:
        if not self._keep_special and self._tokenizer.is_special(token_id):
            return ""
        data = self._tokenizer.token_bytes(token_id)
        if not data:
            return ""
        if not self._tokenizer.byte_fallback or self._tokenizer.is_byte_token(token_id):
            return self._bytes.push(data)
        return self._bytes.end() + data.decode(errors="replace")


class _ByteStream:
    """Bytes as they come; Python marks invalid ones as the Unicode standard recommends."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def pending(self) -> bytes:
        return self._decoder.getstate()[0]

    def push(self, data: bytes) -> str:
        return self._decoder.decode(data)

    def end(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class _ByteRun:
    """A run of byte-fallback tokens: text if all of it is valid, else one U+FFFD for each byte."""

    def __init__(self) -> None:
        self.pending = b""
        self._broken = False

    def push(self, data: bytes) -> str:
        if self._broken:
            return "\ufffd" * len(data)
        held = self.pending + data
        try:
            text, consumed = codecs.utf_8_decode(held, "strict", False)
        except UnicodeDecodeError:
            self._broken, self.pending = True, b""
            return "\ufffd" * len(held)
        if len(held) <= HELD_BYTES:
            self.pending = held
            return ""
        self.pending = held[consumed:]
        return text

    def end(self) -> str:
        held, self.pending, self._broken = self.pending, b"", False
        try:
            return held.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(held)
