"""Who knows what a simulated assistant chooses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Protocol

from draft_node.engines.base import AssistantEngine, AssistantState, Choices, Path
from draft_node.simulated.choices_file import ChoicesFile, key_of
from draft_node.simulated.facts import EngineFacts

_NONSENSE = tuple(math.log(share) for share in (0.7, 0.1, 0.05))
"""How sure of itself an assistant is that is of no use: as sure as a good one where it is right."""


class Voice(Protocol):
    """What one session hears of an oracle."""

    def choose(self, trunk: Sequence[int], paths: Sequence[Path]) -> list[Choices]:
        """What may follow the trunk and each of the paths, which may be empty."""

    def close(self) -> None: ...


class Oracle(Protocol):
    @property
    def facts(self) -> EngineFacts: ...

    def open(self) -> Voice: ...


class RecordedOracle:
    """What the real assistant chose, once; it is loaded and asked only for what is not known yet."""

    def __init__(self, file: ChoicesFile, load: Callable[[], AssistantEngine]) -> None:
        self._load = load
        self.file = file
        if file.facts is None:
            file.begin(EngineFacts.of(self.real))
        self.facts = file.facts or EngineFacts.of(self.real)

    @cached_property
    def real(self) -> AssistantEngine:
        return self._load()

    def open(self) -> RecordedVoice:
        return RecordedVoice(self)


class RecordedVoice:
    """See `Voice`."""

    def __init__(self, oracle: RecordedOracle) -> None:
        self._oracle = oracle
        self._real: AssistantState | None = None
        self._held: list[int] = []
        """The trunk of the real assistant's state."""

    def choose(self, trunk: Sequence[int], paths: Sequence[Path]) -> list[Choices]:
        file = self._oracle.file
        keys = [key_of(trunk, path) for path in paths]
        if any(file.get(key) is None for key in keys):
            file.catch_up()
            missing = [i for i, key in enumerate(keys) if file.get(key) is None]
            if missing:
                chosen = self._compute(list(trunk), [paths[i] for i in missing])
                file.add([keys[i] for i in missing], chosen)
        return [choices for key in keys if (choices := file.get(key)) is not None]

    def close(self) -> None:
        if self._real is not None:
            self._real.close()
            self._real = None

    def _compute(self, trunk: list[int], paths: Sequence[Path]) -> list[Choices]:
        of_trunk = self._read(trunk, wanted=not all(paths))
        real, most = self._state(), self._oracle.real.max_paths
        longer = [path for path in paths if path]
        found: list[Choices] = []
        for start in range(0, len(longer), most):
            found += real.expand(longer[start : start + most])
        rest = iter(found)
        none = Choices((), ())
        return [next(rest) if path else of_trunk or none for path in paths]

    def _read(self, trunk: list[int], *, wanted: bool) -> Choices | None:
        real, chunk = self._state(), self._oracle.real.chunk_tokens
        same = _common(self._held, trunk)
        if wanted:
            # Choices come with reading, so the last id is read even when it is held.
            same = min(same, len(trunk) - 1)
        if same < len(self._held):
            real.truncate(same)
        self._held = trunk[:same]
        choices = None
        while len(self._held) < len(trunk):
            ids = trunk[len(self._held) :][:chunk]
            is_last = len(self._held) + len(ids) == len(trunk)
            choices = real.read(ids, wanted=wanted and is_last)
            self._held += ids
        return choices

    def _state(self) -> AssistantState:
        if self._real is None:
            self._real = self._oracle.real.open()
        return self._real


class NonsenseOracle:
    """Chooses by lot, the same for the same ids, and is sure of it."""

    def __init__(self, facts: EngineFacts) -> None:
        self.facts = facts

    def open(self) -> NonsenseOracle:
        return self

    def choose(self, trunk: Sequence[int], paths: Sequence[Path]) -> list[Choices]:
        return [nonsense((*trunk[-8:], len(trunk), *path), self.facts) for path in paths]

    def close(self) -> None:
        """Holds nothing."""


def nonsense(behind: Sequence[int], facts: EngineFacts) -> Choices:
    """Some ids that end no answer, by a lot that is keyed by `behind`."""
    draw = random.Random(key_of(behind))
    ids: list[int] = []
    while len(ids) < len(_NONSENSE):
        token_id = draw.randrange(facts.vocab_size)
        if token_id not in ids and token_id not in facts.eos_ids:
            ids.append(token_id)
    return Choices(tuple(ids), _NONSENSE)


def _common(held: Sequence[int], wanted: Sequence[int]) -> int:
    count = 0
    with suppress(IndexError):
        while held[count] == wanted[count]:
            count += 1
    return count
