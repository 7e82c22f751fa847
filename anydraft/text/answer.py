"""One answer's ids as text: what both nodes agree on, and what its user sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from anydraft.text.detokenizer import StreamingDetokenizer
from anydraft.text.stopping import StopMatcher
from anydraft.text.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class AnswerPart:
    internal: str
    """Whole characters, special tokens written out, to the end of the token."""
    shown: str
    """What a user may see by now: no special token, no stop string, and no start of one."""


class AnswerText:
    """Text of the ids of one answer as they come, up to its first stop string.

    Stop strings are looked for in the internal text, so that they may name special tokens, as in
    `generate`. What is shown equals the tokenizer's decoding without special tokens, cut where the
    stop string begins.
    """

    def __init__(self, tokenizer: TextTokenizer, stops: Sequence[str] = ()) -> None:
        """Raises InvalidRequestError when a stop string is empty."""
        self._internal = StreamingDetokenizer(tokenizer, keep_special=True)
        self._visible = StreamingDetokenizer(tokenizer, keep_special=False)
        self._matcher = StopMatcher(stops)
        self._tokenizer = tokenizer
        self._internal_length = 0
        self._late: list[tuple[int, str]] = []
        """Internal text, and where it begins, that is not shown yet: a special token ended a
        character or a run of bytes, which goes on in what is shown."""

    @property
    def pending(self) -> bytes:
        """Bytes of ids that were pushed but are not in the internal text: the start of a
        character."""
        return self._internal.pending

    @property
    def stop(self) -> str | None:
        """The stop string that was found. The answer ends with the token that completed it."""
        return self._matcher.matched

    def push(self, token_id: int) -> AnswerPart:
        held = self._visible.pending
        internal, visible = self._internal.push([token_id]), self._visible.push([token_id])
        if held and internal and not visible:
            literal = self._tokenizer.token_bytes(token_id).decode(errors="replace")
            cut_off = internal.removesuffix(literal)
            self._late += [(self._internal_length, cut_off)] if cut_off else []
        shown = self._show(internal, visible)
        if self.stop is not None and self._late:
            shown += self._reveal(self._visible.flush())
        return AnswerPart(internal, shown)

    def finish(self) -> AnswerPart:
        """What is left when no more ids come. It may complete a stop string, too."""
        internal, visible = self._internal.flush(), self._visible.flush()
        shown = self._show(internal, visible)
        return AnswerPart(internal, shown + self._matcher.flush())

    def _show(self, internal: str, visible: str) -> str:
        self._internal_length += len(internal)
        if not self._late or not visible:
            return self._matcher.push(internal, visible)[0]
        if visible.endswith(internal):
            revealed = self._reveal(visible.removesuffix(internal))
            return revealed + self._matcher.push(internal)[0]
        self._late.clear()
        return self._matcher.push(internal, visible)[0]

    def _reveal(self, visible: str) -> str:
        """Shows what a special token cut off, in the place where it stands in the internal text."""
        late, self._late = self._late, []
        if visible == "".join(text for _, text in late):
            return "".join(self._matcher.reveal(start, list(text)) for start, text in late)
        start, text = late[-1]
        return self._matcher.reveal(start + len(text) - 1, [visible])
