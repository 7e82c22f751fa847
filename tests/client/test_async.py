import asyncio

import pytest

from anydraft.client import AsyncClient
from anydraft.errors import (
    AnydraftError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidRequestError,
    ResourceExhaustedError,
    UnavailableError,
)
from tests.client.fake_node import HELLO, SEED, FakeNode, delta, opened


async def _ended(node: FakeNode) -> bool:
    return await asyncio.to_thread(node.ended.wait, 5)


async def test_streams_text_and_assembles_the_result(node: FakeNode) -> None:
    async with AsyncClient(node.address) as client, client.generate("Hi") as stream:
        events = [event async for event in stream]
        result = await stream.result()
    assert [event.drafted_text for event in events] == ["He", ""]
    assert (result.text, result.token_ids) == ("Hello wörld", (1, 2, 3, 4))
    assert (result.finish_reason, result.seed) == ("eos", SEED)
    assert result.stats.total_s >= (result.stats.time_to_first_text_s or 0) > 0


async def test_many_at_once(node: FakeNode) -> None:
    async with AsyncClient(node.address) as client:
        results = await asyncio.gather(*(client.generate(f"{n}").result() for n in range(5)))
    assert [result.text for result in results] == ["Hello wörld"] * 5


async def test_bad_arguments_are_refused_before_anything_is_awaited() -> None:
    client = AsyncClient("127.0.0.1:1")
    with pytest.raises(InvalidRequestError, match="min_p"):
        client.generate("Hi", min_p=-1)
    with pytest.raises(InvalidRequestError, match="timeout"):
        client.generate("Hi", timeout=-1)


async def test_leaving_early_cancels_on_the_server(node: FakeNode) -> None:
    node.hang(opened(), delta("a", 1))
    async with AsyncClient(node.address) as client:
        async with client.generate("Hi") as stream:
            async for _ in stream:
                break
            assert not node.ended.is_set()
        assert await _ended(node)
        assert [event async for event in stream] == []
        with pytest.raises(FailedPreconditionError, match="closed before"):
            await stream.result()


async def test_cancelling_the_reading_task_cancels_on_the_server(node: FakeNode) -> None:
    node.hang(opened(), delta("a", 1))
    async with AsyncClient(node.address) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.generate("Hi").result()
        assert await _ended(node)


async def test_closing_from_another_task_ends_the_iteration(node: FakeNode) -> None:
    node.hang(opened(), delta("a", 1))
    async with AsyncClient(node.address) as client:
        stream = client.generate("Hi")
        await anext(stream)
        reading = asyncio.create_task(anext(stream, None))
        await asyncio.sleep(0.05)
        await stream.close()
        assert await reading is None


async def test_closing_the_client_ends_its_streams(node: FakeNode) -> None:
    node.hang(opened(), delta("a", 1))
    client = AsyncClient(node.address)
    stream = client.generate("Hi")
    await anext(stream)
    reading = asyncio.create_task(anext(stream))
    await asyncio.sleep(0.05)
    await client.close()
    with pytest.raises(AnydraftError) as caught:
        await reading
    assert caught.value.reason == "CANCELLED"
    with pytest.raises(FailedPreconditionError, match="client is closed"):
        await client.generate("Hi").result()


async def test_server_errors_keep_class_reason_and_delay(node: FakeNode) -> None:
    node.fail(ResourceExhaustedError("full: wait", reason="KV_FULL", retry_after_s=1.5), HELLO[1])
    async with AsyncClient(node.address) as client:
        stream = client.generate("Hi")
        assert (await anext(stream)).text == "Hel"
        for _ in range(2):
            with pytest.raises(ResourceExhaustedError, match="full: wait") as caught:
                await stream.result()
            assert (caught.value.reason, caught.value.retry_after_s) == ("KV_FULL", 1.5)


async def test_timeout(node: FakeNode) -> None:
    node.hang(opened())
    async with AsyncClient(node.address, timeout=0.2) as client:
        with pytest.raises(DeadlineExceededError, match=node.address):
            await client.generate("Hi").result()
        assert await _ended(node)


async def test_nobody_there() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(UnavailableError, match="cannot connect"):
            await client.generate("Hi").result()


async def test_another_revision_is_refused(node: FakeNode) -> None:
    node.info.protocol_revision += 1
    async with AsyncClient(node.address) as client:
        with pytest.raises(FailedPreconditionError, match="revision"):
            await client.generate("Hi").result()
        assert (await client.server_info()).model == "big"
    assert node.requests == []


async def test_wait_until_ready(node: FakeNode) -> None:
    node.set_ready(False)
    async with AsyncClient(node.address) as client:
        with pytest.raises(DeadlineExceededError, match="still loading"):
            await client.wait_until_ready(timeout=1)
        asyncio.get_running_loop().call_later(0.1, node.set_ready, True)
        await client.wait_until_ready(timeout=10)
