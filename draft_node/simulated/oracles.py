"""Who knows what a simulated assistant chooses."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import cached_property
from typing import Protocol

from draft_node.engines.base import AssistantEngine, Choices, Path
from draft_node.simulated.choices_file import ChoicesFile, key_of
from draft_node.simulated.facts import EngineFacts
from draft_node.simulated.notes import Notes

_NOT_KNOWN = Choices((), ())
_FILLED_CHILDREN = 2
_FILLED_GENERATIONS = 2
"""What is missed, and two choices behind it: which places a tree grows at hangs on when verdicts
come, so each run asks for others."""
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
    """What the real assistant chose, once. What nobody asked for yet is not known: nothing is said
    then, and the real assistant is loaded and asked when no session is open any more."""

    def __init__(
        self, file: ChoicesFile, load: Callable[[], AssistantEngine], notes: Notes
    ) -> None:
        self._load = load
        self._file = file
        self._notes = notes
        if file.facts is None:
            file.begin(EngineFacts.of(self._real))
        self.facts = file.facts or EngineFacts.of(self._real)
        self._open_voices = 0
        self._missed: dict[str, tuple[tuple[int, ...], Path]] = {}
        """Trunk and path, by their key."""
        self._num_missed = 0

    def open(self) -> RecordedVoice:
        self._open_voices += 1
        return RecordedVoice(self)

    def choose(self, trunk: Sequence[int], paths: Sequence[Path]) -> list[Choices]:
        keys = [key_of(trunk, path) for path in paths]
        found = [self._file.get(key) for key in keys]
        if None in found:
            self._file.catch_up()
            found = [self._file.get(key) for key in keys]
            missed = [i for i, choices in enumerate(found) if choices is None]
            if missed:
                self._missed.update({keys[i]: (tuple(trunk), paths[i]) for i in missed})
                self._num_missed += len(missed)
                self._notes.missed(len(missed))
        return [choices or _NOT_KNOWN for choices in found]

    def closed(self) -> None:
        """A session has ended."""
        self._open_voices -= 1
        if not self._open_voices and self._missed:
            self._fill()

    @cached_property
    def _real(self) -> AssistantEngine:
        return self._load()

    def _fill(self) -> None:
        """Asks the real assistant for what was missed, and what follows its best choices: it would
        be asked for next."""
        by_trunk: dict[tuple[int, ...], set[Path]] = {}
        for trunk, path in self._missed.values():
            by_trunk.setdefault(trunk, set()).add(path)
        with closing(RealVoice(self._real)) as voice:
            for trunk in sorted(by_trunk):
                wanted = sorted(by_trunk[trunk], key=len)
                for _ in range(_FILLED_GENERATIONS):
                    wanted = [p for p in wanted if self._file.get(key_of(trunk, p)) is None]
                    chosen = voice.choose(trunk, wanted)
                    self._file.add([key_of(trunk, path) for path in wanted], chosen)
                    wanted = [
                        (*path, token_id)
                        for path, choices in zip(wanted, chosen, strict=True)
                        for token_id in choices.token_ids[:_FILLED_CHILDREN]
                        if token_id not in self.facts.eos_ids
                    ]
        self._missed.clear()
        self._notes.filled(self._num_missed)
        self._num_missed = 0


class RecordedVoice:
    """See `Voice`."""

    def __init__(self, oracle: RecordedOracle) -> None:
        self._oracle = oracle
        self._is_open = True

    def choose(self, trunk: Sequence[int], paths: Sequence[Path]) -> list[Choices]:
        return self._oracle.choose(trunk, paths)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._oracle.closed()


class RealVoice:
    """A real assistant, asked in any order. See `Voice`."""

    def __init__(self, engine: AssistantEngine) -> None:
        self._engine = engine
        self._state = engine.open()
        self._held: list[int] = []
        """The trunk of its state."""

    def choose(self, trunk: Sequence[int], paths: Sequence[Path]) -> list[Choices]:
        of_trunk = self._read(list(trunk), wanted=not all(paths))
        longer = [path for path in paths if path]
        found: list[Choices] = []
        for start in range(0, len(longer), self._engine.max_paths):
            found += self._state.expand(longer[start : start + self._engine.max_paths])
        rest = iter(found)
        return [next(rest) if path else of_trunk or _NOT_KNOWN for path in paths]

    def close(self) -> None:
        self._state.close()

    def _read(self, trunk: list[int], *, wanted: bool) -> Choices | None:
        same = _common(self._held, trunk)
        if wanted:
            # Choices come with reading, so the last id is read even when it is held.
            same = min(same, len(trunk) - 1)
        if same < len(self._held):
            self._state.truncate(same)
        self._held = trunk[:same]
        choices = None
        while len(self._held) < len(trunk):
            ids = trunk[len(self._held) :][: self._engine.chunk_tokens]
            is_last = len(self._held) + len(ids) == len(trunk)
            choices = self._state.read(ids, wanted=wanted and is_last)
            self._held += ids
        return choices


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
