"""Committed text to assistant ids, kept up to date as the text grows.

The invariant that an assistant's KV cache needs: it holds exactly the ids of the assistant's own
encoding of prompt and committed text. Text that is appended may re-segment the last words; `append`
says how many ids still stand, so that the cache is cut there and the rest is fed again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from anydraft.text.continuation import Continuation
from anydraft.text.tokenizer import TextTokenizer

OPEN_CHARACTERS = 256
"""How much of the text may be re-encoded before some of it is settled."""

_MOST_OPEN_CHARACTERS = 4 * OPEN_CHARACTERS

# A single space between two words: no tokenizer merges across it, and few look past it.
_WORD_BOUNDARY = re.compile(r"(?<=\S)(?= \S)")


class AssistantMirror:
    """Ids of a prompt and of the text generated after it, in one tokenizer's own encoding.

    The text is encoded as the continuation of the prompt's ids, which never change. All but the
    last few hundred characters is settled: an `append` costs the same however long the text is.
    """

    def __init__(self, tokenizer: TextTokenizer, prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._continuation = Continuation(tokenizer)
        self._ids = list(prompt_ids)
        self._settled = len(self._ids)
        self._open = ""

    @property
    def ids(self) -> list[int]:
        """Prompt and text so far. Not to be changed; the next `append` changes it."""
        return self._ids

    def append(self, text: str) -> int:
        """Adds committed text. Returns how many leading ids stayed what they were: never fewer
        than the prompt's."""
        if not text:
            return len(self._ids)
        self._open += text
        unchanged = self._replace(self._encode(self._open))
        self._settle()
        return unchanged

    def _encode(self, text: str) -> list[int]:
        settled = self._ids[max(0, self._settled - 64) : self._settled]
        data = text.encode()
        return self._continuation.encode(settled, data) or self._tokenizer.encode(text)

    def _replace(self, new: list[int]) -> int:
        old = self._ids[self._settled :]
        same = 0
        for before, after in zip(old, new, strict=False):
            if before != after:
                break
            same += 1
        self._ids[self._settled + same :] = new[same:]
        return self._settled + same

    def _settle(self) -> None:
        """Closes the older half of the open text, at a place where that changes no id; all of it
        when no such place is found for long (a run of one character)."""
        if len(self._open) <= OPEN_CHARACTERS:
            return
        half = len(self._open) - OPEN_CHARACTERS // 2
        cuts = [match.start() for match in _WORD_BOUNDARY.finditer(self._open, 0, half)]
        for cut in (*cuts[:-3:-1], half):
            head = self._encode(self._open[:cut])
            if self._ids[self._settled : self._settled + len(head)] == head:
                self._settled += len(head)
                self._open = self._open[cut:]
                return
        if len(self._open) > _MOST_OPEN_CHARACTERS:
            self._settled = len(self._ids)
            self._open = ""
