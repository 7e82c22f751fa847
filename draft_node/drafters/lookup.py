"""Drafts by prompt lookup: what followed the last words where they stood before.

No model and no tokenizer: it searches the text of prompt and answer for the longest earlier
occurrence of what it ends with, and reads on from there.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from anydraft.v1.prompt_pb2 import Prompt
from draft_node.drafters.base import Piece

MIN_MATCH_BYTES = 12
"""Shorter matches are right less than half of the time."""
_MAX_MATCH_BYTES = 64
_MAX_CANDIDATES = 16
_PIECE_BYTES = 64
_TURN_BREAK = b"\x00"
"""Behind every message of a chat: no draft goes on into the next one."""
_PIECE = re.compile(r"\s*\w+|\s*[^\w\s]+|\s+")


@dataclass(frozen=True)
class LookupDrafter:
    """See `draft_node.drafters.base.Drafter`."""

    min_match_bytes: int = MIN_MATCH_BYTES
    """How long a match must be at first; a stream asks for more after matches that misled it."""
    description: str = "prompt lookup"

    def open(self, prompt: Prompt) -> LookupStream:
        return LookupStream(_prompt_bytes(prompt), self.min_match_bytes)


class LookupStream:
    """See `draft_node.drafters.base.DraftStream`."""

    def __init__(self, prompt: bytes, min_match_bytes: int) -> None:
        self._text = bytearray(prompt)
        """Prompt, committed text and draft."""
        self._drafted = 0
        """How many of its last bytes are draft."""
        self._least = self._min_match = min_match_bytes
        self._source: int | None = None
        self._logprob = 0.0
        self._restarted = True
        self.idle = False

    def commit(self, text: str, *, restart: bool) -> None:
        data = text.encode()
        if not restart:
            self._drafted -= len(data)
            return
        if self._drafted:
            self._learn(data)
        del self._text[len(self._text) - self._drafted :]
        self._text += data
        self._drafted = 0
        self._restarted, self.idle = True, False

    def step(self) -> Piece | None:
        if self._restarted:
            self.find()
        piece = "" if self._source is None or self.idle else self._read(self._source)
        if self._source is None or not piece:
            self.idle = True
            return None
        data = piece.encode()
        self._source += len(data)
        self._text += data
        self._drafted += len(data)
        return Piece(piece, self._logprob)

    def close(self) -> None:
        self._text.clear()

    def find(self) -> bool:
        """Looks for what the text ends with; whether it stood before, with more behind it."""
        self._restarted = False
        self._source, length = self._longest_match()
        self._logprob = math.log(_likelihood(length))
        return self._source is not None and bool(self._read(self._source))

    def _longest_match(self) -> tuple[int | None, int]:
        """Where the text goes on behind the longest of the latest matches, and its length."""
        text, size = bytes(self._text), len(self._text)
        key = text[-self._min_match :]
        best, best_length, before = None, 0, size - 1
        if len(key) < self._min_match:
            return None, 0
        for _ in range(_MAX_CANDIDATES):
            found = text.rfind(key, 0, before)
            if found < 0:
                break
            before = found + len(key) - 1
            length = _common_suffix(text, found + len(key))
            if length > best_length:
                best, best_length = found + len(key), length
        return best, best_length

    def _read(self, source: int) -> str:
        """The next word at `source`; empty at a place where it would not be text of a speaker."""
        ahead = bytes(self._text[source : source + _PIECE_BYTES])
        text = ahead.partition(_TURN_BREAK)[0].decode(errors="ignore")
        match = _PIECE.match(text)
        return match[0] if match else ""

    def _learn(self, committed: bytes) -> None:
        """A draft whose very start was wrong asks for longer matches, a good one for shorter."""
        draft = bytes(self._text[-self._drafted :])
        good = draft[: len(committed)] == committed[: len(draft)]
        step = -8 if good else 8
        self._min_match = min(max(self._min_match + step, self._least), _MAX_MATCH_BYTES)


def _common_suffix(text: bytes, end: int) -> int:
    """How many bytes before `end` equal the last ones of `text`, up to a bound."""
    limit = min(end, 4 * _MAX_MATCH_BYTES)
    length = 0
    while length < limit and text[end - 1 - length] == text[-1 - length]:
        length += 1
    return length


def _likelihood(match_bytes: int) -> float:
    """How often the word behind a match of this length was right, in summaries, edits and answers
    about a text in the prompt (Qwen2.5-0.5B, 400 matches)."""
    if match_bytes < 24:
        return 0.6
    return 0.85 if match_bytes < 64 else 0.98


def _prompt_bytes(prompt: Prompt) -> bytes:
    if prompt.WhichOneof("prompt") == "messages":
        contents = [message.content.encode() for message in prompt.messages.messages]
        return _TURN_BREAK.join([*contents, b""])
    return prompt.text.encode()
