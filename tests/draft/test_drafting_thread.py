from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from draft_node import drafting_thread
from draft_node.drafting_thread import DraftingThread

LONG = 1e9


class Held:
    """The thread, busy until `leave`: what is submitted meanwhile waits together."""

    def __init__(self, worker: DraftingThread) -> None:
        self.worker = worker
        self.ran: list[str] = []
        self.leave = threading.Event()
        entered = threading.Event()
        self.passes = [worker.submit(lambda: 1.0, lambda: (entered.set(), self.leave.wait(10)))]  # type: ignore[arg-type, return-value]
        assert entered.wait(10)

    def submit(self, name: str, worth: Callable[[], float]) -> None:
        self.passes.append(self.worker.submit(worth, lambda: self.ran.append(name)))

    async def all_done(self) -> list[Any]:
        self.leave.set()
        return await asyncio.gather(*self.passes, return_exceptions=True)


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    return lambda seconds: monkeypatch.setattr(drafting_thread, "_PATIENCE_S", seconds)


async def test_what_is_worth_more_by_now_is_next(
    worker: DraftingThread, patience: Callable[[float], None]
) -> None:
    patience(LONG)
    held, worths = Held(worker), {"a": 0.1, "b": 0.9, "c": 0.5, "d": 0.0}
    for name in worths:
        held.submit(name, lambda name=name: worths[name])  # type: ignore[misc]
    worths["d"] = 1.0  # a verdict came meanwhile
    await held.all_done()
    assert held.ran == ["d", "b", "c", "a"]


async def test_in_time_every_pass_runs(
    worker: DraftingThread, patience: Callable[[float], None]
) -> None:
    patience(1e-9)
    held = Held(worker)
    for name, worth in (("a", 0.0), ("b", 1.0), ("c", 0.5)):
        held.submit(name, lambda worth=worth: worth)  # type: ignore[misc]
    await held.all_done()
    assert held.ran == ["a", "b", "c"]


async def test_a_pass_that_fails_fails_alone(worker: DraftingThread) -> None:
    held = Held(worker)

    def fail() -> float:
        raise RuntimeError("no worth")

    def crash() -> None:
        raise KeyboardInterrupt("in native code")

    held.submit("asked in vain", fail)
    held.passes.append(worker.submit(lambda: 1.0, crash))
    held.submit("b", lambda: 0.0)
    results = await held.all_done()
    assert held.ran == ["asked in vain", "b"]
    assert "KeyboardInterrupt" in str(results[2])
    assert [type(result) for result in results[:2]] == [float, float]


async def test_a_cancelled_pass_does_not_run(worker: DraftingThread) -> None:
    held = Held(worker)
    held.submit("a", lambda: 1.0)
    held.submit("b", lambda: 0.5)
    held.passes[1].cancel()
    await asyncio.sleep(0)
    await held.all_done()
    assert held.ran == ["b"]
