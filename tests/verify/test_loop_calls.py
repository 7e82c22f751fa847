"""What other threads tell an event loop arrives together, and in order."""

from __future__ import annotations

import asyncio
import threading

from verify_node.loop_calls import LoopCalls


async def test_one_waking_for_all_that_is_told_before_it() -> None:
    loop, calls, heard = asyncio.get_running_loop(), LoopCalls(), []
    woken = 0
    call_soon_threadsafe = loop.call_soon_threadsafe

    def count(*args: object) -> object:
        nonlocal woken
        woken += 1
        return call_soon_threadsafe(*args)  # type: ignore[arg-type]

    loop.call_soon_threadsafe = count  # type: ignore[assignment, method-assign]
    try:
        for turn in range(2):
            for number in range(5):
                calls.call(loop, lambda n=(turn, number): heard.append(n))  # type: ignore[misc]
            told = asyncio.Event()
            calls.call(loop, told.set)
            await told.wait()
    finally:
        del loop.call_soon_threadsafe  # type: ignore[attr-defined]
    assert woken == 2
    assert heard == [(turn, number) for turn in range(2) for number in range(5)]


async def test_nothing_is_lost_between_threads() -> None:
    loop, calls = asyncio.get_running_loop(), LoopCalls()
    heard: list[tuple[int, int]] = []

    def tell(who: int) -> None:
        for number in range(500):
            calls.call(loop, lambda n=number: heard.append((who, n)))  # type: ignore[misc]

    told = asyncio.Event()
    threads = [threading.Thread(target=tell, args=(who,)) for who in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    calls.call(loop, told.set)
    await told.wait()
    for who in range(3):
        assert [number for teller, number in heard if teller == who] == list(range(500))


def test_a_loop_that_is_gone_is_no_error() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    calls = LoopCalls()
    for _ in range(2):
        calls.call(loop, lambda: None)
