"""Answers and outcomes with times of one's choosing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from anydraft.bench.arms import ASSISTED, TARGET_ONLY, Answer
from anydraft.bench.runs import Outcome
from anydraft.bench.tasks import Task
from anydraft.client import Stats


def stats(**values: Any) -> Stats:
    zeros: dict[str, Any] = dict.fromkeys((field.name for field in fields(Stats)), 0)
    return Stats(**{**zeros, **values})


def answer(
    tokens: int = 10,
    seconds: float = 2.0,
    first_s: float = 0.5,
    *,
    began: float = 100.0,
    ids: Sequence[int] | None = None,
    **said: Any,
) -> Answer:
    """The first token alone, all others at the end."""
    ids = tuple(range(tokens)) if ids is None else tuple(ids)
    arrivals = [(began + first_s, 1), (began + seconds, len(ids) - 1)]
    if len(ids) == 1:
        arrivals = [(began + seconds, 1)]
    return Answer(ids, began, tuple(arrivals), stats(**said) if said else None)


def outcome(
    alone: Answer | None = None,
    assisted: Answer | None = None,
    *,
    category: str = "qa",
    prompt: str = "Why?",
    expected: tuple[int, ...] | None = None,
) -> Outcome:
    found = Outcome(Task(category, prompt, 10, expected=expected))
    found.add(TARGET_ONLY, alone or answer())
    found.add(ASSISTED, assisted or answer(seconds=1.0))
    return found
