"""Who is asked when."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from anydraft.bench.arms import Answer
from anydraft.bench.runs import run_one_by_one, run_side_by_side
from anydraft.bench.tasks import Task
from anydraft.errors import UnavailableError
from tests.bench.answers import answer

TASKS = [Task("qa", f"prompt {i}", 4) for i in range(3)]


@dataclass
class Scripted:
    """An arm that notes what it was asked, and how much at once."""

    name: str
    log: list[tuple[str, str]]
    now: int = 0
    most: int = 0
    lacks: int = 0
    """How many of its next answers lack two things."""
    lacked: int = 0
    fills: int = 0

    async def ask(self, task: Task) -> Answer:
        self.log.append((self.name, task.prompt))
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        if self.lacks:
            self.lacks -= 1
            self.lacked += 2
        return answer(4)

    def missed(self) -> int:
        return self.lacked

    async def filled(self) -> None:
        self.fills += 1

    async def close(self) -> None:
        raise AssertionError("whoever made the arm closes it")


async def test_arms_take_turns_prompt_by_prompt() -> None:
    log: list[tuple[str, str]] = []
    heard = []
    arms = [Scripted("a", log), Scripted("b", log)]
    run = await run_one_by_one(TASKS, arms, repeats=2, heard=lambda o: heard.append(o.task))
    assert [name for name, _ in log] == ["a", "b", "b", "a"] * 3
    assert [prompt for _, prompt in log[::2]] == [task.prompt for task in TASKS] * 2
    assert heard == TASKS * 2
    assert all(len(outcome.answers[name]) == 2 for outcome in run.outcomes for name in "ab")
    assert (run.tries, run.incomplete) == (12, 0)


@pytest.mark.parametrize(
    ("lacks", "tries", "left", "fills"), [(1, 7, 0, 1), (3, 9, 0, 3), (9, 13, 2, 9)]
)
async def test_an_answer_that_lacked_something_is_asked_for_again(
    lacks: int, tries: int, left: int, fills: int
) -> None:
    """Three times at most, when it is there; then it stands, and is told."""
    arm = Scripted("a", [], lacks=lacks)
    run = await run_one_by_one(TASKS, [arm, Scripted("b", [])], lack=arm)
    assert (run.tries, run.incomplete, run.missed) == (tries, left, 2 * left)
    assert arm.fills == fills
    assert all(len(outcome.answers["a"]) == 1 for outcome in run.outcomes)


async def test_several_sessions_are_kept_busy() -> None:
    log: list[tuple[str, str]] = []
    arms = [Scripted("a", log), Scripted("b", log)]
    run = await run_side_by_side(TASKS, arms, 2)
    assert [arm.most for arm in arms] == [2, 2]
    # Two goes of six answers for each arm, which take turns.
    assert [name for name, _ in log] == ["a"] * 6 + ["b"] * 12 + ["a"] * 6
    assert {name: len(found) for name, found in run.busy.items()} == {"a": 2, "b": 2}
    assert [len(outcome.answers["a"]) for outcome in run.outcomes] == [4, 4, 4]


async def test_an_arm_that_fails_ends_the_run() -> None:
    class Broken(Scripted):
        async def ask(self, task: Task) -> Answer:
            raise UnavailableError("gone", reason="UNAVAILABLE")

    with pytest.raises(UnavailableError):
        await run_one_by_one(TASKS, [Broken("a", [])])
    with pytest.raises(UnavailableError):
        await run_side_by_side(TASKS, [Broken("a", [])], 2)
