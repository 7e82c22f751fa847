"""A draft node over loopback, in front of a verify node that a test plays."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import pytest

from anydraft.errors import (
    AnydraftError,
    DeadlineExceededError,
    InvalidRequestError,
    ResourceExhaustedError,
    UnavailableError,
)
from anydraft.rpc.channel import dial
from anydraft.rpc.server import NodeServer
from anydraft.rpc.status import abort, from_rpc_error
from anydraft.text import TextTokenizer
from anydraft.v1.generation_pb2 import GenerateRequest, GenerateResponse
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.prompt_pb2 import GenerationSpec, Prompt, SamplingParams, StopConditions
from anydraft.v1.result_pb2 import (
    FINISH_REASON_EOS,
    Finished,
    GenerationStats,
    Opened,
    TokenLogprobs,
)
from anydraft.v1.server_pb2 import NODE_ROLE_DRAFT, GetServerInfoRequest
from anydraft.v1.server_pb2_grpc import ServerServiceStub
from anydraft.v1.verification_pb2 import Draining, Verdict, VerifyRequest, VerifyResponse
from anydraft.v1.verification_pb2_grpc import (
    VerificationServiceServicer,
    add_VerificationServiceServicer_to_server,
)
from anydraft.version import PROTOCOL_REVISION, VERSION
from draft_node.drafters.assistant import AssistantDrafter
from draft_node.drafters.base import Drafter, Piece
from draft_node.drafters.lookup import LookupDrafter
from draft_node.lifecycle import DraftNode
from draft_node.load import LoadedDrafter
from tests.draft.scripted import ScriptedEngine, ScriptedVerifier

PROMPT = Prompt(text="Tell me how drafts work. ")
ANSWER = "A draft is checked by the target in one pass; what agrees is kept. 你好 🙂, and so on."
SPEC = GenerationSpec(
    model="target",
    prompt=PROMPT,
    sampling=SamplingParams(temperature=0.5, seed=7),
    stop=StopConditions(max_new_tokens=50, stop=["END"]),
    logprobs=2,
)
Script = Callable[["PlayedVerifier", AsyncIterator[VerifyRequest], Any], AsyncIterator[Any]]


@dataclass
class PlayedVerifier(VerificationServiceServicer):
    """Runs `script`, and keeps what it was sent."""

    script: Script
    requests: list[VerifyRequest] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def Verify(  # noqa: N802
        self, request_iterator: Any, context: Any
    ) -> AsyncIterator[VerifyResponse]:
        try:
            async for response in self.script(self, self._heard(request_iterator), context):
                yield response
        finally:
            self.ended.set()

    async def _heard(self, requests: AsyncIterator[VerifyRequest]) -> AsyncIterator[VerifyRequest]:
        async for request in requests:
            self.requests.append(request)
            yield request

    def kinds(self) -> list[str | None]:
        return [request.WhichOneof("message") for request in self.requests]


@asynccontextmanager
async def verify_node(script: Script) -> AsyncIterator[tuple[str, PlayedVerifier]]:
    node = NodeServer("127.0.0.1:0")
    played = PlayedVerifier(script)
    add_VerificationServiceServicer_to_server(played, node.server)
    address = await node.start()
    try:
        yield address, played
    finally:
        await node.stop(0)


@asynccontextmanager
async def draft_node(verify: str, drafter: Drafter) -> AsyncIterator[grpc.aio.Channel]:
    loaded = LoadedDrafter(drafter, "scripted", drafter.description, 128, False)
    node = DraftNode(loaded, verify, "127.0.0.1:0")
    address = await node.start()
    try:
        async with dial(address) as channel:
            yield channel
    finally:
        await node.stop()


@asynccontextmanager
async def both(
    script: Script, drafter: Drafter
) -> AsyncIterator[tuple[grpc.aio.Channel, PlayedVerifier]]:
    async with verify_node(script) as (address, played), draft_node(address, drafter) as channel:
        yield channel, played


def assistant(tokenizer: TextTokenizer) -> AssistantDrafter:
    engine = ScriptedEngine(tokenizer, tokenizer.encode_prompt(PROMPT), ANSWER)
    return AssistantDrafter(engine, tokenizer)


async def generate(
    channel: grpc.aio.Channel, *, timeout_s: float = 20
) -> tuple[list[GenerateResponse], AnydraftError | None]:
    """All responses, and the error that ended them if one did."""
    responses: list[GenerateResponse] = []
    call = GenerationServiceStub(channel).Generate(GenerateRequest(spec=SPEC), timeout=timeout_s)
    try:
        async for response in call:
            responses.append(response)
    except grpc.RpcError as error:
        return responses, from_rpc_error(error)
    return responses, None


def opened(credit: int = 48) -> VerifyResponse:
    return VerifyResponse(opened=Opened(session_id="s", model="target", credit_pieces=credit))


def finished() -> VerifyResponse:
    stats = GenerationStats(completion_tokens=5)
    return VerifyResponse(finished=Finished(reason=FINISH_REASON_EOS, stats=stats))


async def honest(
    played: PlayedVerifier, requests: AsyncIterator[VerifyRequest], context: Any
) -> AsyncIterator[VerifyResponse]:
    """Opens, waits for each draft, steps, and finishes."""
    verifier = ScriptedVerifier(ANSWER)
    await anext(requests)
    yield opened()
    async for request in requests:
        verifier.take(request.draft)
        yield VerifyResponse(verdict=verifier.step())
        if verifier.finished:
            yield finished()
            return


async def test_an_answer_made_with_drafts(tokenizer: TextTokenizer) -> None:
    async with both(honest, assistant(tokenizer)) as (channel, played):
        responses, error = await generate(channel)
        assert error is None
        assert await asyncio.wait_for(played.ended.wait(), 5)
    kinds = [response.WhichOneof("message") for response in responses]
    assert kinds == ["opened", *["delta"] * (len(kinds) - 2), "finished"]
    assert responses[0].opened.model == "target"
    deltas = [response.delta for response in responses[1:-1]]
    assert "".join(delta.text for delta in deltas) == ANSWER
    assert 0 < sum(delta.drafted_bytes for delta in deltas) < len(ANSWER.encode())
    opening = played.requests[0].open
    assert (opening.protocol_revision, opening.spec) == (PROTOCOL_REVISION, SPEC)
    stats = responses[-1].finished.stats
    assert stats.completion_tokens == 5
    assert stats.sent_pieces >= sum(len(r.draft.pieces) for r in played.requests)
    assert stats.sent_bytes >= sum(request.ByteSize() for request in played.requests)
    assert stats.received_bytes > len(ANSWER)
    assert stats.draft_ms > 0


async def test_answers_at_the_same_time(tokenizer: TextTokenizer) -> None:
    async with both(honest, assistant(tokenizer)) as (channel, _):
        answers = await asyncio.gather(*(generate(channel) for _ in range(4)))
    for responses, error in answers:
        assert error is None
        assert "".join(response.delta.text for response in responses) == ANSWER


async def test_the_user_sees_the_users_text(tokenizer: TextTokenizer) -> None:
    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        yield opened(0)
        marks = [TokenLogprobs(logprob=-0.5)]
        for verdict in (
            Verdict(base_bytes=0, text="Hel", token_ids=[5], drafted_bytes=3, logprobs=marks),
            Verdict(base_bytes=3, text="loEN", token_ids=[6], user_text="lo", drafted_bytes=4),
            Verdict(base_bytes=7, token_ids=[7]),
            Verdict(base_bytes=7, text="D", user_text=""),
            Verdict(base_bytes=8, text="<|im_end|>", token_ids=[9], user_text=""),
        ):
            yield VerifyResponse(verdict=verdict)
        yield finished()

    async with both(script, assistant(tokenizer)) as (channel, _):
        responses, error = await generate(channel)
    assert error is None
    deltas = [response.delta for response in responses[1:-1]]
    assert [(d.text, list(d.token_ids), d.drafted_bytes) for d in deltas] == [
        ("Hel", [5], 3),
        ("lo", [6], 2),
        ("", [7], 0),
        ("", [9], 0),
    ]
    assert deltas[0].logprobs[0].logprob == -0.5


async def test_errors_of_the_verify_node_keep_class_and_reason(tokenizer: TextTokenizer) -> None:
    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        yield opened()
        yield VerifyResponse(verdict=Verdict(text="A", token_ids=[5]))
        error = ResourceExhaustedError("Full. Try later.", reason="KV_FULL", retry_after_s=2.5)
        await abort(context, error)

    async with both(script, assistant(tokenizer)) as (channel, _):
        responses, error = await generate(channel)
    assert [response.WhichOneof("message") for response in responses] == ["opened", "delta"]
    assert isinstance(error, ResourceExhaustedError)
    assert (str(error), error.reason, error.retry_after_s) == ("Full. Try later.", "KV_FULL", 2.5)


async def test_an_absent_verify_node_is_named(tokenizer: TextTokenizer) -> None:
    async with verify_node(honest) as (address, _):
        pass
    async with draft_node(address, assistant(tokenizer)) as channel:
        responses, error = await generate(channel)
    assert responses == []
    assert isinstance(error, UnavailableError)
    assert error.reason == "VERIFY_NODE_UNREACHABLE"
    assert address in str(error)
    assert "--verify" in str(error)


async def test_a_verify_node_may_come_later(tokenizer: TextTokenizer) -> None:
    async with verify_node(honest) as (address, _):
        pass
    async with draft_node(address, assistant(tokenizer)) as channel:
        _, error = await generate(channel)
        assert error is not None
        node = NodeServer(address)
        add_VerificationServiceServicer_to_server(PlayedVerifier(honest), node.server)
        await node.start()
        try:
            async with asyncio.timeout(10):
                while error is not None:
                    await asyncio.sleep(0.1)
                    responses, error = await generate(channel)
        finally:
            await node.stop(0)
    assert "".join(response.delta.text for response in responses) == ANSWER


async def test_an_answer_cut_short_is_an_error(tokenizer: TextTokenizer) -> None:
    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        yield opened()

    async with both(script, assistant(tokenizer)) as (channel, _):
        _, error = await generate(channel)
    assert isinstance(error, UnavailableError)
    assert error.reason == "TRUNCATED_STREAM"


async def until_closed(
    played: PlayedVerifier, requests: AsyncIterator[VerifyRequest], context: Any
) -> AsyncIterator[VerifyResponse]:
    """Says one word, then listens until it is told to close."""
    await anext(requests)
    yield opened()
    yield VerifyResponse(verdict=Verdict(text="A", token_ids=[5], credit_pieces=48))
    async for request in requests:
        if request.HasField("close"):
            return


async def test_a_cancelled_answer_closes_the_session(tokenizer: TextTokenizer) -> None:
    async with both(until_closed, assistant(tokenizer)) as (channel, played):
        call = GenerationServiceStub(channel).Generate(GenerateRequest(spec=SPEC))
        async for response in call:
            if response.HasField("delta"):
                break
        call.cancel()
        await asyncio.wait_for(played.ended.wait(), 5)
    assert played.kinds()[0] == "open"
    assert played.kinds()[-1] == "close"


async def test_the_deadline_of_the_app_reaches_the_verify_node(tokenizer: TextTokenizer) -> None:
    left: list[float] = []

    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        left.append(context.time_remaining())
        await anext(requests)
        yield opened()
        async for _ in requests:
            pass

    async with both(script, assistant(tokenizer)) as (channel, played):
        _, error = await generate(channel, timeout_s=0.5)
        await asyncio.wait_for(played.ended.wait(), 5)
    assert isinstance(error, DeadlineExceededError)
    assert 0 < left[0] < 0.6


class Broken:
    description = "broken"

    def __init__(self, *, at_open: bool) -> None:
        self.at_open = at_open
        self.idle = False

    def open(self, prompt: Prompt) -> Broken:
        if self.at_open:
            raise MemoryError
        return self

    def step(self) -> Piece | None:
        raise RuntimeError("the engine is broken")

    def commit(self, text: str, *, restart: bool) -> None:
        pass


@pytest.mark.parametrize("at_open", [True, False])
async def test_the_answer_does_not_depend_on_drafts(
    at_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The verifier hears that no drafts will come, and goes on alone."""

    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        yield opened()
        assert [request async for request in requests] == []
        for at, letter in enumerate("ABC"):
            yield VerifyResponse(verdict=Verdict(base_bytes=at, text=letter, token_ids=[at]))
        yield finished()

    async with both(script, Broken(at_open=at_open)) as (channel, _):
        responses, error = await generate(channel)
    assert error is None
    assert "".join(response.delta.text for response in responses) == "ABC"
    assert [r.levelno for r in caplog.records if "draft" in r.name].count(logging.WARNING) == 1


async def test_a_draining_verify_node_finishes_its_answers(tokenizer: TextTokenizer) -> None:
    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        yield opened()
        yield VerifyResponse(draining=Draining())
        yield VerifyResponse(verdict=Verdict(text="Bye.", token_ids=[5]))
        yield finished()

    async with both(script, assistant(tokenizer)) as (channel, _):
        responses, error = await generate(channel)
    assert error is None
    assert [r.WhichOneof("message") for r in responses] == ["opened", "delta", "finished"]


async def test_the_node_says_what_it_is() -> None:
    async with draft_node("127.0.0.1:9", LookupDrafter()) as channel:
        response = await ServerServiceStub(channel).GetServerInfo(GetServerInfoRequest())
    info = response.info
    assert info.role == NODE_ROLE_DRAFT
    assert (info.model, info.version, info.engine) == ("scripted", VERSION, "prompt lookup")
    assert info.protocol_revision == PROTOCOL_REVISION
    assert (info.context_tokens, info.has_chat_template) == (128, False)
    assert info.verify_address == "127.0.0.1:9"


async def test_addresses_are_checked() -> None:
    loaded = LoadedDrafter(LookupDrafter(), "m", "e", None, None)
    for verify, listen in (("nowhere", "127.0.0.1:0"), ("127.0.0.1:1", "nowhere")):
        with pytest.raises(InvalidRequestError, match="HOST:PORT"):
            DraftNode(loaded, verify, listen)


async def test_a_node_that_stops_waits_for_opened_answers_only(tokenizer: TextTokenizer) -> None:
    go_on = asyncio.Event()

    async def opens_the_first(
        played: PlayedVerifier, requests: Any, context: Any
    ) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        if len(played.requests) > 1:
            await asyncio.sleep(60)
        yield opened()
        await go_on.wait()
        yield VerifyResponse(verdict=Verdict(text="Bye.", token_ids=[5]))
        yield finished()

    async with verify_node(opens_the_first) as (verify, _):
        loaded = LoadedDrafter(LookupDrafter(), "scripted", "lookup", 128, False)
        node = DraftNode(loaded, verify, "127.0.0.1:0")
        async with dial(await node.start()) as channel:
            answer = aiter(GenerationServiceStub(channel).Generate(GenerateRequest(spec=SPEC)))
            assert (await anext(answer)).HasField("opened")
            never_opened = asyncio.create_task(generate(channel))
            await asyncio.sleep(0.2)
            stopping = asyncio.create_task(node.stop(grace_s=60))
            responses, error = await asyncio.wait_for(never_opened, 5)
            assert (responses, type(error)) == ([], UnavailableError)
            assert not stopping.done()
            go_on.set()
            assert [r.WhichOneof("message") async for r in answer] == ["delta", "finished"]
            await asyncio.wait_for(stopping, 5)
