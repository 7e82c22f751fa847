"""Asking all arms, in turns, so that no arm has the machine's better hour."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Protocol, TypeVar

from anydraft.bench.arms import Answer, Arm
from anydraft.bench.tasks import Task
from anydraft.errors import AnydraftError

_T = TypeVar("_T")

_MOST_TRIES = 4
"""Of a measurement that lacked something. The last one counts, and says so."""
_ANSWERS_A_SESSION = 3
"""In one go of several sessions: the longer the go, the smaller the share at its end in which some
have nothing to do any more."""
_LEAST_GOES = 2
"""So that each arm is once the first."""


@dataclass(slots=True)
class Outcome:
    """All answers to one task, by arm."""

    task: Task
    answers: dict[str, list[Answer]] = field(default_factory=dict)

    def add(self, arm: str, answer: Answer) -> None:
        self.answers.setdefault(arm, []).append(answer)


@dataclass(frozen=True, slots=True)
class Busy:
    """A stretch of time in which all sessions of an arm had something to do."""

    seconds: float
    tokens: int


@dataclass(slots=True)
class Run:
    """Everything that was asked under one set of conditions."""

    outcomes: list[Outcome]
    busy: dict[str, list[Busy]] = field(default_factory=dict)
    """By arm; empty where one session ran at a time."""
    incomplete: int = 0
    """Measurements that lacked something at every try."""
    missed: int = 0
    """How many choices of the assistant those lacked."""
    tries: int = 0
    """How many there were, those that were repeated included."""


class Lack(Protocol):
    """What is not there yet that a measurement needs, as `anydraft.bench.memory.Memory` has it."""

    def missed(self) -> int:
        """How much was missed so far."""

    async def filled(self) -> None:
        """Returns once it is there."""


class NoLack:
    """Nothing is ever missed."""

    def missed(self) -> int:
        return 0

    async def filled(self) -> None:
        return


async def run_one_by_one(
    tasks: Sequence[Task],
    arms: Sequence[Arm],
    *,
    repeats: int = 1,
    lack: Lack | None = None,
    heard: Callable[[Outcome], None] = lambda outcome: None,
) -> Run:
    """One session. Prompt by prompt, each arm; the one that begins changes from prompt to prompt.
    `heard` is told of an outcome each time that all arms have answered."""
    run = Run([Outcome(task) for task in tasks])
    turn = 0
    for _ in range(repeats):
        for outcome in run.outcomes:
            for arm in _in_turns(arms, turn):
                ask = partial(arm.ask, outcome.task)
                answer = await _complete(ask, lack or NoLack(), run)
                outcome.add(arm.name, answer)
            turn += 1
            heard(outcome)
    return run


async def run_side_by_side(
    tasks: Sequence[Task],
    arms: Sequence[Arm],
    sessions: int,
    *,
    repeats: int = 1,
    lack: Lack | None = None,
    heard: Callable[[Outcome], None] = lambda outcome: None,
) -> Run:
    """That many sessions at once, in goes of a few answers each; the arms take turns go by go."""
    run = Run([Outcome(task) for task in tasks])
    size = sessions * _ANSWERS_A_SESSION
    goes = max(-(-len(tasks) * repeats // size), _LEAST_GOES)
    queue = cycle(run.outcomes)
    for turn in range(goes):
        chosen = list(islice(queue, size))
        for arm in _in_turns(arms, turn):
            go = partial(_go, arm, [outcome.task for outcome in chosen], sessions)
            answers, busy = await _complete(go, lack or NoLack(), run)
            run.busy.setdefault(arm.name, []).append(busy)
            for outcome, answer in zip(chosen, answers, strict=True):
                outcome.add(arm.name, answer)
        for outcome in chosen:
            heard(outcome)
    return run


async def _go(arm: Arm, tasks: Sequence[Task], sessions: int) -> tuple[list[Answer], Busy]:
    waiting = list(enumerate(tasks))[::-1]
    answers: list[Answer | None] = [None] * len(tasks)
    first_idle_at_s: list[float] = []

    async def session() -> None:
        while waiting:
            index, task = waiting.pop()
            answers[index] = await arm.ask(task)
        first_idle_at_s.append(asyncio.get_running_loop().time())

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(sessions):
                group.create_task(session())
    except* AnydraftError as errors:
        raise errors.exceptions[0] from None
    found = [answer for answer in answers if answer is not None]
    return found, busy_stretch(found, min(first_idle_at_s))


def busy_stretch(answers: Sequence[Answer], until_s: float) -> Busy:
    """From the first question to `until_s`, when a session first had nothing to do any more."""
    since_s = min(answer.began_at_s for answer in answers)
    tokens = sum(count for answer in answers for at_s, count in answer.arrivals if at_s <= until_s)
    return Busy(until_s - since_s, tokens)


def _in_turns(arms: Sequence[Arm], turn: int) -> Sequence[Arm]:
    first = turn % len(arms)
    return [*arms[first:], *arms[:first]]


async def _complete(ask: Callable[[], Awaitable[_T]], lack: Lack, run: Run) -> _T:
    """Asks again while an answer lacked something."""
    missed = lack.missed()
    for _ in range(_MOST_TRIES):
        before = missed
        run.tries += 1
        answer = await ask()
        missed = lack.missed()
        if missed == before:
            return answer
        await lack.filled()
        missed = lack.missed()
    run.incomplete += 1
    run.missed += missed - before
    return answer
