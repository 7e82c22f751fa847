"""Ids of a text's units: what stands between two places where tokenizers begin a new token.

A unit begins with a single blank between two other characters. Whatever stands before, tokenizers
begin a token there, so that the ids of a text are those of its units, one after the other, and a
unit met again need not be encoded again. Where a tokenizer merges words, this is merely not what it
would have written.
"""

from __future__ import annotations

import re
from typing import NamedTuple, TypeVar

from anydraft.text.continuation import Continuation
from anydraft.text.tokenizer import TextTokenizer

UNIT_START = re.compile(rb"(?<=\S) (?=\S)")
_KEPT_UNITS = 8192
"""A few megabytes; a session's text has a few hundred."""
_KEPT_BYTES = 64
"""Longer units hardly come again."""
_CALL_BYTES = 32
"""What a call of the tokenizer costs beside its text, in bytes of text."""

_Key = TypeVar("_Key")


class UnitToken(NamedTuple):
    token_id: int
    end: int
    """Where its text ends in the unit, in bytes."""


class EncodedUnit(NamedTuple):
    tokens: tuple[UnitToken, ...]
    """Their bytes, joined, are exactly those of the unit, as far as the tokenizer writes it as it
    is: up to an unknown character, another case, or an id that the model does not have."""
    is_whole: bool
    """Whether that is all of the unit."""


class Budget:
    """How much text may still be encoded."""

    def __init__(self, num_bytes: int) -> None:
        self.left = num_bytes

    def spend(self, text: bytes) -> bytes:
        """What may be encoded of it: all but at the end; nothing when the budget is spent."""
        part = cut(text, self.left) if self.left > 0 else b""
        self.left -= len(text) + _CALL_BYTES
        return part


class UnitEncoder:
    """Encodes units of one tokenizer, and remembers them. Safe to share between threads."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._continuation = Continuation(tokenizer)
        self._kept: dict[bytes, EncodedUnit] = {}
        self._kept_behind: dict[tuple[tuple[int, ...], bytes], EncodedUnit] = {}

    def encode(self, unit: bytes, budget: Budget) -> EncodedUnit | None:
        """The ids of UTF-8 text, behind text that it does not merge with; None when it is not
        remembered and the budget is spent."""
        return self._remembered(self._kept, unit, (), unit, 0, budget)

    def encode_behind(
        self, context: tuple[int, ...], text: bytes, unfinished: int, budget: Budget
    ) -> EncodedUnit | None:
        """The ids of text behind ids, see `Continuation.encode`; None as above."""
        return self._remembered(
            self._kept_behind, (context, text), context, text, unfinished, budget
        )

    def _remembered(
        self,
        kept: dict[_Key, EncodedUnit],
        key: _Key,
        context: tuple[int, ...],
        text: bytes,
        unfinished: int,
        budget: Budget,
    ) -> EncodedUnit | None:
        if (found := kept.get(key)) is not None:
            return found
        part = budget.spend(text)
        if text and not part:
            return None
        encoded = self._encode(context, part, unfinished)
        if part != text:
            return EncodedUnit(encoded.tokens, is_whole=False)
        if len(text) <= _KEPT_BYTES:
            if len(kept) >= _KEPT_UNITS:
                kept.clear()
            kept[key] = encoded
        return encoded

    def _encode(self, context: tuple[int, ...], text: bytes, unfinished: int) -> EncodedUnit:
        unknown, limit = self._tokenizer.unknown_id, self._tokenizer.id_limit
        tokens: list[UnitToken] = []
        end = 0
        for token_id in self._continuation.encode(context, text, unfinished=unfinished):
            piece = self._tokenizer.token_bytes(token_id)
            if token_id == unknown or token_id >= limit or not piece:
                break
            if not text.startswith(piece, end):
                break
            end += len(piece)
            tokens.append(UnitToken(token_id, end))
        return EncodedUnit(tuple(tokens), end == len(text))


def cut(data: bytes, size: int) -> bytes:
    """The whole characters of the first `size` bytes."""
    while 0 < size < len(data) and data[size] & 0xC0 == 0x80:
        size -= 1
    return data[:size]
