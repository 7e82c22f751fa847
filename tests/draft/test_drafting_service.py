"""Drafting for others: a node over loopback, dialled by a verifier that a test plays."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from anydraft.errors import (
    AnydraftError,
    FailedPreconditionError,
    InvalidFieldError,
    InvalidRequestError,
    ResourceExhaustedError,
)
from anydraft.rpc import health
from anydraft.rpc.channel import dial
from anydraft.rpc.health import Health
from anydraft.rpc.status import from_rpc_error
from anydraft.text import TextTokenizer
from anydraft.v1.drafting_pb2 import Commit, DraftRequest, OpenDrafting
from anydraft.v1.drafting_pb2_grpc import DraftingServiceStub
from anydraft.v1.prompt_pb2 import Prompt
from anydraft.v1.server_pb2 import GetServerInfoRequest
from anydraft.v1.server_pb2_grpc import ServerServiceStub
from anydraft.v1.verification_pb2 import VerifyRequest
from anydraft.version import PROTOCOL_REVISION
from draft_node import drafting_service
from draft_node.drafters.assistant import AssistantDrafter
from draft_node.drafters.base import Drafter
from draft_node.drafters.combined import CombinedDrafter
from draft_node.drafting_session import DraftingSession
from draft_node.lifecycle import DraftNode
from draft_node.load import LoadedDrafter
from tests.draft.played import ANSWER, PROMPT, both, generate, honest
from tests.draft.scripted import ScriptedEngine, ScriptedVerifier

GENERATION, DRAFTING = "anydraft.v1.GenerationService", "anydraft.v1.DraftingService"


@pytest.fixture
def engine(tokenizer: TextTokenizer) -> ScriptedEngine:
    return ScriptedEngine(tokenizer, tokenizer.encode_prompt(PROMPT), ANSWER)


@pytest.fixture
def drafter(engine: ScriptedEngine) -> CombinedDrafter:
    return CombinedDrafter(AssistantDrafter(engine, engine.tokenizer))


@asynccontextmanager
async def drafting_node(drafter: Drafter, **settings: int) -> AsyncIterator[grpc.aio.Channel]:
    """It has no verify node."""
    node = DraftNode(None, "127.0.0.1:0", **settings)
    address = await node.start()
    try:
        await node.serve(LoadedDrafter(drafter, "scripted", drafter.description))
        async with dial(address) as channel:
            yield channel
    finally:
        await node.stop()


def opening(**fields: Any) -> DraftRequest:
    values: dict[str, Any] = {
        "protocol_revision": PROTOCOL_REVISION,
        "prompt": PROMPT,
        "credit_pieces": 48,
        "credit_bytes": 4096,
    }
    return DraftRequest(open=OpenDrafting(**{**values, **fields}))


async def opened(channel: grpc.aio.Channel, **fields: Any) -> Any:
    """A stream that was accepted."""
    call = DraftingServiceStub(channel).Draft()
    await call.write(opening(**fields))
    response = await call.read()
    assert response.HasField("opened"), response
    return call


async def follow(call: Any, verifier: ScriptedVerifier) -> int:
    """Plays the verifier to the end of its answer, which waits for drafts of a few pieces; returns
    in how many steps."""
    while not verifier.finished:
        rest = len(verifier.answer) - len(verifier.committed)
        while verifier.longest < min(4, rest // 6):
            verifier.take((await call.read()).draft)
        verdict = verifier.step()
        commit = Commit(
            base_bytes=verdict.base_bytes, text=verdict.text, credit_pieces=verdict.credit_pieces
        )
        await call.write(DraftRequest(commit=commit))
    return verifier.num_steps


async def error_of(call: Any) -> AnydraftError:
    with pytest.raises(grpc.RpcError) as caught:
        await asyncio.wait_for(_read_all(call), 10)
    return from_rpc_error(caught.value)


async def _read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not come to that")


def num_held(engine: ScriptedEngine) -> int:
    return sum(not state.is_closed for state in engine.states)


async def test_drafts_for_an_answer_that_others_make(
    engine: ScriptedEngine, drafter: CombinedDrafter
) -> None:
    async with drafting_node(drafter) as channel:
        call = await opened(channel)
        num_steps = await follow(call, ScriptedVerifier(ANSWER))
        assert num_steps < len(engine.tokenizer.encode(ANSWER)) / 2
        await call.done_writing()
        await asyncio.wait_for(_read_all(call), 10)
        await until(lambda: num_held(engine) == 0)


async def test_an_answer_that_others_drafted_before(
    engine: ScriptedEngine, drafter: CombinedDrafter
) -> None:
    """Its text so far is read with the prompt, and offsets count from its beginning."""
    verifier = ScriptedVerifier(ANSWER)
    head = ANSWER[: ANSWER.index("你好") + 1]
    verifier.committed = head
    verifier.tree.commit(head.encode())
    async with drafting_node(drafter) as channel:
        call = await opened(channel, committed_text=head)
        first = (await call.read()).draft
        assert first.base_bytes == len(head.encode())
        verifier.take(first)
        assert verifier.held_bytes > 0
        call.cancel()
        await until(lambda: num_held(engine) == 0)
    assert verifier.num_stale == 0


async def test_no_more_sessions_than_it_has_places_for(
    engine: ScriptedEngine, drafter: CombinedDrafter
) -> None:
    async with drafting_node(drafter, max_sessions=2) as channel:
        calls = [await opened(channel) for _ in range(2)]
        third = DraftingServiceStub(channel).Draft()
        await third.write(opening())
        error = await error_of(third)
        info = (await ServerServiceStub(channel).GetServerInfo(GetServerInfoRequest())).info
        calls[0].cancel()
        await until(lambda: num_held(engine) == 1)
        calls[0] = await opened(channel)
        for call in calls:
            call.cancel()
    assert isinstance(error, ResourceExhaustedError)
    assert error.reason == "DRAFTER_FULL"
    assert (info.num_drafting_sessions, info.max_drafting_sessions) == (2, 2)


async def test_an_answer_of_its_own_without_a_place_goes_on_without_drafts(
    engine: ScriptedEngine, drafter: CombinedDrafter
) -> None:
    async def plain(played: Any, requests: AsyncIterator[VerifyRequest], _: Any) -> Any:
        """Needs no drafts."""
        async for response in honest(played, _with_nothing(requests), _):
            yield response

    async def _with_nothing(requests: AsyncIterator[VerifyRequest]) -> Any:
        yield await anext(requests)
        while True:
            yield VerifyRequest()

    async with both(plain, drafter, max_sessions=1) as (channel, played):
        call = await opened(channel)
        responses, error = await generate(channel)
        call.cancel()
    assert error is None
    assert "".join(response.delta.text for response in responses) == ANSWER
    assert "draft" not in played.kinds()


async def test_a_node_without_a_verify_node_says_what_it_is(drafter: CombinedDrafter) -> None:
    async with drafting_node(drafter) as channel:
        _, error = await generate(channel)
        info = (await ServerServiceStub(channel).GetServerInfo(GetServerInfoRequest())).info
        ready = [await health.check(channel, name, timeout_s=5) for name in (DRAFTING, GENERATION)]
    assert isinstance(error, FailedPreconditionError)
    assert error.reason == "NO_VERIFY_NODE"
    assert "--verify" in str(error)
    assert ready == [Health.SERVING, Health.NOT_SERVING]
    assert not info.HasField("verify_address")
    assert info.assistant == "scripted"


@pytest.mark.parametrize(
    ("requests", "error_type", "reason"),
    [
        ([DraftRequest(commit=Commit(text="x"))], InvalidRequestError, "OPEN_EXPECTED"),
        ([opening(prompt=Prompt())], InvalidFieldError, "FIELD_MISSING"),
        ([opening(tenant="x" * 2000)], InvalidFieldError, "FIELD_OUT_OF_RANGE"),
        (
            [opening(protocol_revision=PROTOCOL_REVISION + 1)],
            FailedPreconditionError,
            "PROTOCOL_REVISION_MISMATCH",
        ),
        ([opening(), opening()], InvalidRequestError, "COMMIT_EXPECTED"),
        (
            [opening(committed_text="ab"), DraftRequest(commit=Commit(base_bytes=1, text="b"))],
            InvalidFieldError,
            "FIELD_OUT_OF_RANGE",
        ),
        (
            [opening(), DraftRequest(commit=Commit(turn_ms=float("nan")))],
            InvalidFieldError,
            "FIELD_OUT_OF_RANGE",
        ),
    ],
)
async def test_what_makes_no_sense_ends_the_stream(
    engine: ScriptedEngine,
    drafter: CombinedDrafter,
    requests: list[DraftRequest],
    error_type: type[AnydraftError],
    reason: str,
) -> None:
    async with drafting_node(drafter) as channel:
        call = DraftingServiceStub(channel).Draft()
        for request in requests:
            await call.write(request)
        error = await error_of(call)
        await until(lambda: num_held(engine) == 0)
    assert type(error) is error_type
    assert error.reason == reason


@pytest.mark.usefixtures("no_collector")
async def test_a_cancel_at_any_moment(engine: ScriptedEngine, drafter: CombinedDrafter) -> None:
    async with drafting_node(drafter) as channel:
        await channel.channel_ready()
        for moments in range(0, 60, 3):
            call = DraftingServiceStub(channel).Draft()
            await call.write(opening())
            playing = asyncio.create_task(_play(call))
            for _ in range(moments):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            await until(lambda: num_held(engine) == 0)


async def _play(call: Any) -> None:
    assert (await call.read()).HasField("opened")
    await follow(call, ScriptedVerifier(ANSWER))


async def test_a_flood_of_commits_is_not_held(
    engine: ScriptedEngine, drafter: CombinedDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a pass takes for ever, as many wait as may; then all of them are heard."""
    leave = threading.Event()
    next_id = engine.next_id

    def hold(ids: list[int]) -> int:
        leave.wait(20)
        return next_id(ids)

    monkeypatch.setattr(engine, "next_id", hold)
    sessions: list[DraftingSession] = []

    def made(*args: Any) -> DraftingSession:
        sessions.append(DraftingSession(*args))
        return sessions[-1]

    monkeypatch.setattr(drafting_service, "DraftingSession", made)
    async with drafting_node(drafter) as channel:
        call = await opened(channel)
        flood = asyncio.create_task(_flood(call, 3000))
        await until(lambda: sessions[0]._loop.num_unheard >= 1024)
        await asyncio.sleep(0.1)
        assert sessions[0]._loop.num_unheard == 1024
        leave.set()
        await asyncio.wait_for(flood, 20)
        await until(lambda: sessions[0]._loop.num_unheard == 0)
        call.cancel()


async def _flood(call: Any, count: int) -> None:
    for _ in range(count):
        await call.write(DraftRequest(commit=Commit(credit_pieces=48)))


async def test_a_node_that_stops_does_not_wait_for_its_sessions(
    engine: ScriptedEngine, drafter: CombinedDrafter
) -> None:
    node = DraftNode(None, "127.0.0.1:0")
    async with dial(await node.start()) as channel:
        await node.serve(LoadedDrafter(drafter, "scripted", "scripted"))
        call = await opened(channel)
        stopping = asyncio.create_task(node.stop(grace_s=60))
        assert (await error_of(call)).reason == "SHUTTING_DOWN"
        await asyncio.wait_for(stopping, 10)
    assert num_held(engine) == 0
