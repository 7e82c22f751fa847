"""Draft text to target ids: candidates for what follows the committed ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anydraft.text.continuation import Continuation
from anydraft.text.tokenizer import TextTokenizer

ALIGNED_BYTES = 1024
"""How much of a draft is looked at in one call: more than any step checks, and a few milliseconds
whatever the text and the tokenizer are."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A target id that the draft suggests."""

    token_id: int
    end: int
    """Where its text ends in the draft, in UTF-8 bytes."""


class DraftAligner:
    """Turns draft text into ids of one tokenizer. Holds no state between calls; a call costs a few
    encodings of at most ALIGNED_BYTES of the draft and 32 committed ids, however long the session
    is."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._continuation = Continuation(tokenizer)

    def align(self, committed_ids: Sequence[int], pending: bytes, draft: str) -> list[Candidate]:
        """Candidates in order, for the positions right behind `committed_ids`.

        `draft` begins at the end of the announced text, so it covers `pending`, the bytes of the
        committed ids that are not announced. The bytes of the candidates, joined, are exactly what
        follows `pending` in the draft, up to where the tokenizer would write something else (an
        unknown character, another case); so `end` grows strictly. Empty when the draft contradicts
        `pending`, holds lone surrogates, or cannot be written. Never raises.

        The last candidate may be cut short by the end of the draft (" wor" of " world"), or by
        ALIGNED_BYTES.
        """
        try:
            data = _cut(draft[:ALIGNED_BYTES].encode())
        except UnicodeEncodeError:
            return []
        if not data.startswith(pending) or len(data) == len(pending):
            return []
        text = data[len(pending) :]
        ids = self._continuation.encode(committed_ids, text, unfinished=len(pending))
        return self._matching(ids, data, len(pending))

    def _matching(self, ids: Sequence[int], data: bytes, end: int) -> list[Candidate]:
        unknown, limit = self._tokenizer.unknown_id, self._tokenizer.id_limit
        candidates: list[Candidate] = []
        for token_id in ids:
            piece = self._tokenizer.token_bytes(token_id)
            if token_id == unknown or token_id >= limit or not piece:
                break
            if not data.startswith(piece, end):
                break
            end += len(piece)
            candidates.append(Candidate(token_id, end))
        return candidates


def _cut(data: bytes) -> bytes:
    """The whole characters of the first ALIGNED_BYTES."""
    size = ALIGNED_BYTES
    while size < len(data) and data[size] & 0xC0 == 0x80:
        size -= 1
    return data[:size]
