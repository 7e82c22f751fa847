"""What a session holds is given back when it ends, however it ends, with the collector off."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from anydraft.errors import AnydraftError, UnavailableError
from anydraft.rpc.channel import KEEP_ALIVE, KeepAlive
from anydraft.rpc.status import from_rpc_error
from anydraft.text import TextTokenizer
from anydraft.v1.generation_pb2 import GenerateRequest
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.verification_pb2 import Verdict, VerifyRequest, VerifyResponse
from draft_node.assisted_answer import AssistedAnswer, Drafting
from draft_node.drafters.assistant import AssistantDrafter
from draft_node.drafters.combined import CombinedDrafter
from draft_node.drafting_thread import DraftingThread
from draft_node.verify_nodes import VerifyNodes
from tests.draft.played import (
    ANSWER,
    PROMPT,
    SPEC,
    both,
    draft_node,
    finished,
    generate,
    honest,
    opened,
    verify_node,
)
from tests.draft.relay import relay
from tests.draft.scripted import ScriptedEngine

pytestmark = pytest.mark.usefixtures("no_collector")


@pytest.fixture
def engine(tokenizer: TextTokenizer) -> ScriptedEngine:
    return ScriptedEngine(tokenizer, tokenizer.encode_prompt(PROMPT), ANSWER)


@pytest.fixture
def drafter(engine: ScriptedEngine) -> CombinedDrafter:
    return CombinedDrafter(AssistantDrafter(engine, engine.tokenizer))


def num_held(engine: ScriptedEngine) -> int:
    return sum(not state.is_closed for state in engine.states)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that")


async def test_64_answers(engine: ScriptedEngine, drafter: CombinedDrafter) -> None:
    async with both(honest, drafter) as (channel, _):
        for _ in range(16):
            answers = await asyncio.gather(*(generate(channel) for _ in range(4)))
            assert [error for _, error in answers] == [None] * 4
            await until(lambda: num_held(engine) == 0)
    assert len(engine.states) == 64
    assert all(state.num_fed for state in engine.states)


@pytest.mark.parametrize("num_cancels", [1, 2])
async def test_a_cancel_at_any_moment(
    num_cancels: int, engine: ScriptedEngine, drafter: CombinedDrafter
) -> None:
    """Twice, as at the end of a server's grace: the second must not stop the cleaning up."""
    worker = DraftingThread()
    moments = 0
    async with verify_node(honest) as (address, _), dialled(address) as nodes:
        # As it is once the node runs: the connection stands.
        node = nodes.best("")
        assert node is not None
        await node.channel.channel_ready()
        was_finished = False
        while not was_finished:
            answer = AssistedAnswer(nodes, Drafting(drafter, worker), timeout_s=None)
            taking = asyncio.create_task(_take_all(answer))
            for _ in range(moments):
                await asyncio.sleep(0)
            was_finished = taking.done()
            for _ in range(num_cancels):
                taking.cancel()
                await asyncio.sleep(0)
            await asyncio.wait({taking})
            await until(lambda: num_held(engine) == 0)
            moments += 1 + moments // 16
    worker.close()
    assert moments > 32
    assert len(engine.states) > 16


@asynccontextmanager
async def dialled(address: str) -> AsyncIterator[VerifyNodes]:
    async def nothing() -> None:
        pass

    nodes = VerifyNodes([address], KEEP_ALIVE, nothing)
    try:
        yield nodes
    finally:
        await nodes.close()


async def _take_all(answer: AssistedAnswer) -> None:
    try:
        async for _ in answer.responses(SPEC):
            pass
    finally:
        await answer.close()


async def test_a_step_in_flight_ends_before_its_state_is_closed(
    engine: ScriptedEngine, drafter: CombinedDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafting thread is busy when the answer is cancelled: neither overlap nor leak."""
    entered, leave = threading.Event(), threading.Event()

    def hold(ids: list[int]) -> int:
        entered.set()
        leave.wait(10)
        return engine.eos_id

    monkeypatch.setattr(engine, "next_id", hold)
    worker = DraftingThread()
    async with verify_node(honest) as (address, _), dialled(address) as nodes:
        answer = AssistedAnswer(nodes, Drafting(drafter, worker), timeout_s=None)
        taking = asyncio.create_task(_take_all(answer))
        await until(entered.is_set)
        taking.cancel()
        await asyncio.wait({taking})
        assert num_held(engine) == 1
        leave.set()
        await until(lambda: num_held(engine) == 0)
    worker.close()


async def test_a_reader_that_has_stopped_reading(
    engine: ScriptedEngine, drafter: CombinedDrafter
) -> None:
    """Its answer is more than a connection buffers, less than the node does."""
    block, count = "0123456789abcdef" * 256, 100

    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        yield opened()
        for at in range(count):
            yield VerifyResponse(verdict=Verdict(base_bytes=at * len(block), text=block))
        yield finished()

    worker = DraftingThread()
    async with verify_node(script) as (address, played), dialled(address) as nodes:
        answer = AssistedAnswer(nodes, Drafting(drafter, worker), timeout_s=None)
        responses = answer.responses(SPEC)
        await anext(responses)
        await asyncio.wait_for(played.ended.wait(), 10)
        await until(lambda: num_held(engine) == 0)
        text = "".join([response.delta.text async for response in responses])
        await answer.close()
    worker.close()
    assert text == block * count


async def chatty(
    played: Any, requests: AsyncIterator[VerifyRequest], context: Any
) -> AsyncIterator[VerifyResponse]:
    """Says one word, and listens from then on."""
    await anext(requests)
    yield opened()
    yield VerifyResponse(verdict=Verdict(text="A", token_ids=[5], credit_pieces=48))
    async for _ in requests:
        pass


async def in_the_middle(channel: grpc.aio.Channel) -> Any:
    """A call whose answer has begun."""
    call = GenerationServiceStub(channel).Generate(GenerateRequest(spec=SPEC))
    assert (await call.read()).HasField("opened")
    assert (await call.read()).HasField("delta")
    return call


async def end_of(call: Any) -> AnydraftError:
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.wait_for(call.read(), 20)
    return from_rpc_error(caught.value)


async def test_a_verify_node_that_dies(engine: ScriptedEngine, drafter: CombinedDrafter) -> None:
    async with (
        verify_node(chatty) as (target, _),
        relay(target) as (address, network),
        draft_node(address, drafter) as channel,
    ):
        call = await in_the_middle(channel)
        network.cut()
        error = await end_of(call)
        await until(lambda: num_held(engine) == 0)
    assert isinstance(error, UnavailableError)
    assert error.reason == "CONNECTION_LOST"
    assert f"the verify node {address} was lost" in str(error)


async def test_a_verify_node_that_stops(engine: ScriptedEngine, drafter: CombinedDrafter) -> None:
    verify = verify_node(chatty)
    address, _ = await verify.__aenter__()
    async with draft_node(address, drafter) as channel:
        call = await in_the_middle(channel)
        await verify.__aexit__(None, None, None)
        error = await end_of(call)
        await until(lambda: num_held(engine) == 0)
    assert isinstance(error, UnavailableError)
    assert error.reason == "SHUTTING_DOWN"


async def test_a_verify_node_that_freezes(engine: ScriptedEngine, drafter: CombinedDrafter) -> None:
    """One answer waits for it and hears of it; another is cancelled, which it cannot be told."""
    async with (
        verify_node(chatty) as (target, _),
        relay(target) as (address, network),
        draft_node(address, drafter, KeepAlive(interval_s=1, timeout_s=1)) as channel,
    ):
        waiting, cancelled = await in_the_middle(channel), await in_the_middle(channel)
        network.freeze()
        cancelled.cancel()
        await until(lambda: num_held(engine) == 1)
        error = await end_of(waiting)
        await until(lambda: num_held(engine) == 0)
    assert isinstance(error, UnavailableError)
    assert error.reason == "CONNECTION_LOST"


async def deaf(
    played: Any, requests: AsyncIterator[VerifyRequest], context: Any
) -> AsyncIterator[VerifyResponse]:
    """Opens, and neither listens nor says anything from then on."""
    await anext(requests)
    yield opened()
    await asyncio.Event().wait()


async def test_a_cancelled_answer_of_a_verify_node_that_hangs(
    engine: ScriptedEngine, drafter: CombinedDrafter
) -> None:
    async with both(deaf, drafter) as (channel, played):
        call = GenerationServiceStub(channel).Generate(GenerateRequest(spec=SPEC))
        async for _ in call:
            call.cancel()
            break
        await until(lambda: num_held(engine) == 0)
        await asyncio.wait_for(played.ended.wait(), 10)


async def test_an_answer_whose_stream_stays_open_behind_its_end(
    engine: ScriptedEngine, drafter: CombinedDrafter
) -> None:
    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        yield opened()
        yield finished()
        await asyncio.Event().wait()

    async with both(script, drafter) as (channel, played):
        responses, error = await generate(channel)
        await until(lambda: num_held(engine) == 0)
        await asyncio.wait_for(played.ended.wait(), 10)
    assert error is None
    assert [response.WhichOneof("message") for response in responses] == ["opened", "finished"]


async def test_drafting_that_failed_holds_nothing_while_its_answer_goes_on(
    engine: ScriptedEngine, drafter: CombinedDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(ids: list[int]) -> int:
        raise RuntimeError("the engine is broken")

    monkeypatch.setattr(engine, "next_id", fail)
    async with both(deaf, drafter) as (channel, _):
        call = GenerationServiceStub(channel).Generate(GenerateRequest(spec=SPEC))
        await call.read()
        await until(lambda: bool(engine.states) and num_held(engine) == 0)
        assert not call.done()
        call.cancel()
