"""What a simulated target says: the recorded answer, as long as all before it is that, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anydraft.errors import InvalidRequestError

ANYTHING = 0
"""The id that is said where nothing was recorded."""


@dataclass(frozen=True, slots=True)
class Script:
    """The ids of a prompt and of the answer behind it."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]

    def at(self, index: int) -> int | None:
        """The id at that place of both together; None behind the end."""
        index -= len(self.prompt_ids)
        return self.answer_ids[index] if index < len(self.answer_ids) else None


class Scripts:
    """Finds the script that a text follows."""

    def __init__(self, scripts: Iterable[Script]) -> None:
        """Raises InvalidRequestError when two scripts begin with the same prompt."""
        self._by_prompt: dict[tuple[int, ...], Script] = {}
        for script in scripts:
            if script.prompt_ids in self._by_prompt:
                raise InvalidRequestError(
                    "two recorded answers have the same prompt, so that nobody knows which to "
                    "give: keep one of them in each file",
                    reason="BENCH_FILE_INVALID",
                )
            self._by_prompt[script.prompt_ids] = script
        self._lengths = sorted({len(ids) for ids in self._by_prompt}, reverse=True)

    def find(self, ids: Sequence[int]) -> Script | None:
        """The one with the longest prompt that `ids` begin with."""
        for length in self._lengths:
            if length <= len(ids):
                script = self._by_prompt.get(tuple(ids[:length]))
                if script is not None:
                    return script
        return None


@dataclass(slots=True)
class Place:
    """How far a text follows a script: the first `length` tokens of it, if it follows any."""

    script: Script | None
    length: int

    def after(self, token_id: int) -> Place:
        """The place of the text that is one token longer."""
        if self.script is None or self.script.at(self.length) != token_id:
            return Place(None, 0)
        return Place(self.script, self.length + 1)

    def next_id(self) -> int:
        """What the target says there."""
        said = None if self.script is None else self.script.at(self.length)
        return ANYTHING if said is None else said


def place_in(script: Script | None, ids: Sequence[int]) -> Place:
    """Of a text that begins with the script's prompt."""
    if script is None:
        return Place(None, 0)
    behind = tuple(ids[len(script.prompt_ids) :])
    follows = script.answer_ids[: len(behind)] == behind
    return Place(script, len(ids)) if follows else Place(None, 0)
