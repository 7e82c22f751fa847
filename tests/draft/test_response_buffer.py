from __future__ import annotations

import asyncio

import pytest

from anydraft.errors import UnavailableError
from anydraft.v1.generation_pb2 import GenerateResponse, TextDelta
from draft_node.response_buffer import ResponseBuffer


def response(text: str) -> GenerateResponse:
    return GenerateResponse(delta=TextDelta(text=text))


async def test_in_order_up_to_the_end() -> None:
    buffer = ResponseBuffer()
    reading = asyncio.create_task(_texts(buffer))
    for text in ("a", "b", "c"):
        await buffer.put(response(text))
        await asyncio.sleep(0)
    buffer.end()
    assert await reading == ["a", "b", "c"]


async def test_an_error_comes_behind_what_came_before_it() -> None:
    buffer = ResponseBuffer()
    await buffer.put(response("a"))
    buffer.end(UnavailableError("Gone. Ask again.", reason="GONE"))
    first = await buffer.get()
    assert first is not None
    assert first.delta.text == "a"
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await buffer.get()


async def test_a_full_buffer_makes_the_writer_wait() -> None:
    buffer = ResponseBuffer(max_bytes=10)
    await buffer.put(response("0123456789"))
    writing = asyncio.create_task(buffer.put(response("b")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not writing.done()
    await buffer.get()
    await writing
    buffer.end()
    assert await _texts(buffer) == ["b"]


async def test_nobody_waits_for_a_reader_who_left() -> None:
    buffer = ResponseBuffer(max_bytes=1)
    await buffer.put(response("a"))
    writing = asyncio.create_task(buffer.put(response("b")))
    await asyncio.sleep(0)
    buffer.discard()
    await writing
    await buffer.put(response("c"))
    buffer.end()
    assert await buffer.get() is None


async def _texts(buffer: ResponseBuffer) -> list[str]:
    texts = []
    while (found := await buffer.get()) is not None:
        texts.append(found.delta.text)
    return texts
