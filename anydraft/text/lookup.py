"""Prompt lookup: what followed the last words where they stood before.

No model and no tokenizer: it looks for the longest earlier occurrence of what the text ends with,
in prompt and answer, and reads on from there. Prompt n-grams are sorted once, those of the answer
are put in a table as they come, so that a search costs microseconds however long the prompt is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from anydraft.text.tree import Piece
from anydraft.v1.prompt_pb2 import Prompt

MIN_MATCH_BYTES = 12
"""Shorter matches are right less than half of the time."""
_MAX_MATCH_BYTES = 256
"""Longer ones are not told apart."""
_MAX_CANDIDATES = 16
"""Of the places where the last bytes stood before, how many of the latest are compared."""
_PIECE_BYTES = 32
"""Room for a piece, on average; most words take a quarter of it."""
_EXPECTED_PIECES = 12
"""What is read on each commit: more words than a target commits at once."""
_LIKELIHOODS = ((64, 0.98), (24, 0.85), (0, 0.6))
"""How often the word behind a match of so many bytes or more was right, in summaries, edits and
answers about a text in the prompt (Qwen2.5-0.5B, 400 matches)."""
_LIKELIHOOD_WEIGHT = 4.0
"""In words seen: a session where matches mislead is recognised after a few of them."""
_PART_BREAK = b"\x00"
"""Between parts of a prompt: nothing is read across it."""
_MIX = 0x9E3779B97F4A7C15
_PIECE = re.compile(r"\s*\w+|\s*[^\w\s]+|\s+")


def prompt_parts(prompt: Prompt) -> list[bytes]:
    """A prompt as `PromptLookup` takes it: no draft goes on from one message into the next, nor
    from the last one into the answer."""
    if prompt.WhichOneof("prompt") == "messages":
        return [*(message.content.encode() for message in prompt.messages.messages), b""]
    return [prompt.text.encode()]


@dataclass(frozen=True, slots=True)
class _Match:
    source: int
    """Where the text goes on behind it."""
    length: int


class PromptLookup:
    """One session's text, searched. Not thread-safe.

    How likely a continuation is taken to be goes by the length of its match and by how often such
    matches were right in this session.
    """

    def __init__(self, parts: Sequence[bytes]) -> None:
        """`parts` are texts that the answer may repeat; the answer goes on from the last one.
        Takes 0.2 s for a megabyte, and keeps 13 bytes for each of theirs."""
        self._text = bytearray(_PART_BREAK.join(parts))
        self._prompt = _SortedGrams(self._text[:-1])
        self._answer: dict[bytes, list[int]] = {}
        """Where each n-gram ends that the prompt has not, but for the very last one."""
        self._seen = [[_LIKELIHOOD_WEIGHT * p, _LIKELIHOOD_WEIGHT] for _, p in _LIKELIHOODS]
        """Words that were right, and words, by length of match."""
        self._match = self._longest(self._text, None)
        self._expected = self._read(self._match, b"", _EXPECTED_PIECES)

    def commit(self, data: bytes) -> None:
        """The answer grew by `data`."""
        if not data:
            return
        if self._match is not None:
            self._learn(data, self._match.length)
        first = len(self._text)
        followed = self._match.source + len(data) if self._match else None
        self._text += data
        for end in range(max(first, MIN_MATCH_BYTES), len(self._text)):
            gram = bytes(self._text[end - MIN_MATCH_BYTES : end])
            self._answer.setdefault(gram, []).append(end)
        self._match = self._longest(self._text, followed)
        self._expected = self._read(self._match, b"", _EXPECTED_PIECES)

    def continuation(
        self, behind: bytes = b"", *, max_pieces: int = _EXPECTED_PIECES
    ) -> list[Piece]:
        """A chain of words that may follow the committed text and `behind`; empty when what they
        end with did not stand before."""
        if behind:
            match = self._longest(self._text[-_MAX_MATCH_BYTES:] + behind, None)
            return self._read(match, behind, max_pieces)
        if max_pieces <= _EXPECTED_PIECES:
            return self._expected[:max_pieces]
        return self._read(self._match, b"", max_pieces)

    def _read(self, match: _Match | None, behind: bytes, max_pieces: int) -> list[Piece]:
        if match is None:
            return []
        size = _PIECE_BYTES * max_pieces
        ahead = self._ahead(match.source, behind, size)
        # Pieces may begin and end inside a character.
        whole = ahead.partition(_PART_BREAK)[0].decode(errors="surrogateescape")
        pieces: list[Piece] = []
        length = match.length
        for found in _PIECE.finditer(whole):
            text = found[0].encode(errors="surrogateescape")
            length += len(text)
            if len(pieces) == max_pieces or (pieces and length - match.length == size):
                break  # the last one that was read is cut short
            right, words = self._seen[_bucket(length - len(text))]
            pieces.append(Piece(text, math.log(right / words)))
        return pieces

    def _longest(self, text: bytes | bytearray, followed: int | None) -> _Match | None:
        """The longest of the latest matches for the end of `text`, which ends as the session's text
        does, or behind it; `followed` may end another one."""
        if len(text) < MIN_MATCH_BYTES:
            return None
        key = bytes(text[-MIN_MATCH_BYTES:])
        sources = self._answer.get(key, [])[-_MAX_CANDIDATES:]
        if len(sources) < _MAX_CANDIDATES:
            sources = [*self._prompt.ends(key, _MAX_CANDIDATES - len(sources)), *sources]
        if followed is not None:
            sources = [followed, *sources]
        end = bytes(text[-_MAX_MATCH_BYTES:])
        best: _Match | None = None
        for source in sources:
            length = _common_suffix(bytes(self._text[max(source - len(end), 0) : source]), end)
            if length >= max(MIN_MATCH_BYTES, best.length if best else 0):
                best = _Match(source, length)
        return best

    def _ahead(self, source: int, behind: bytes, size: int) -> bytes:
        """What follows `source` in the session's text, `behind`, and what is read here itself: a
        repetition goes on for ever."""
        ahead = bytes(self._text[source : source + size])
        if len(ahead) < size:
            ahead += behind[: size - len(ahead)]
        if ahead and len(ahead) < size:
            ahead = (ahead * (size // len(ahead) + 1))[:size]
        return ahead

    def _learn(self, data: bytes, length: int) -> None:
        """`data` followed a match of that length."""
        said = 0
        for piece in self._expected:
            text = data[said : said + len(piece.text)]
            if not text:
                return
            right = piece.text.startswith(text)
            count = self._seen[_bucket(length + said)]
            count[0] += right
            count[1] += 1
            if not right:
                return
            said += len(text)


class _SortedGrams:
    """Where each n-gram of a text ends."""

    def __init__(self, text: bytes | bytearray) -> None:
        data = np.frombuffer(bytes(text), np.uint8).astype(np.uint64)
        count = max(len(text) - MIN_MATCH_BYTES + 1, 0)
        keys = np.zeros(count, np.uint64)
        for index in range(MIN_MATCH_BYTES if count else 0):
            keys = keys * np.uint64(_MIX) + data[index : index + count]
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._ends: npt.NDArray[np.int32] = order.astype(np.int32) + MIN_MATCH_BYTES

    def ends(self, gram: bytes, most: int) -> list[int]:
        """The latest `most` of its places, and rarely those of another one."""
        key = 0
        for byte in gram:
            key = (key * _MIX + byte) & (2**64 - 1)
        found = np.uint64(key)
        first = int(np.searchsorted(self._keys, found, "left"))
        last = int(np.searchsorted(self._keys, found, "right"))
        ends: list[int] = self._ends[max(first, last - most) : last].tolist()
        return ends


def _common_suffix(one: bytes, other: bytes) -> int:
    """How many of their last bytes are equal."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[len(one) - middle :] == other[len(other) - middle :]:
            low = middle
        else:
            high = middle - 1
    return low


def _bucket(match_bytes: int) -> int:
    return next(i for i, (least, _) in enumerate(_LIKELIHOODS) if match_bytes >= least)
