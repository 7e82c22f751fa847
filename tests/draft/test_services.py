"""A draft node over loopback, in front of a verify node that a test plays."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from anydraft.errors import (
    DeadlineExceededError,
    InvalidRequestError,
    ResourceExhaustedError,
    UnavailableError,
)
from anydraft.rpc.channel import dial
from anydraft.rpc.server import NodeServer
from anydraft.rpc.status import abort
from anydraft.text import TextTokenizer
from anydraft.text.tree import Piece, TextTree
from anydraft.v1.generation_pb2 import GenerateRequest
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.prompt_pb2 import Prompt
from anydraft.v1.result_pb2 import (
    TokenLogprobs,
)
from anydraft.v1.verification_pb2 import Draining, Verdict, VerifyRequest, VerifyResponse
from anydraft.v1.verification_pb2_grpc import (
    add_VerificationServiceServicer_to_server,
)
from anydraft.version import PROTOCOL_REVISION
from draft_node.drafters.lookup import LookupDrafter
from draft_node.lifecycle import DraftNode
from draft_node.load import LoadedDrafter
from tests.draft.played import (
    ANSWER,
    SPEC,
    PlayedVerifier,
    assistant,
    both,
    draft_node,
    finished,
    generate,
    honest,
    opened,
    verify_node,
)


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


class Panic(BaseException):
    """As native code raises it: no Exception."""


class Odd:
    """A drafter that does `act` wherever it can."""

    description = "odd"
    idle = False
    needs_ms = 0.0

    def __init__(self, act: Callable[[], Piece], *, at_open: bool = False) -> None:
        self.act = act
        self.at_open = at_open

    def open(self, prompt: Prompt, **_: object) -> Odd:
        if self.at_open:
            self.act()
        return self

    def worth(self, tree: TextTree) -> float:
        return 1.0

    def grow(self, tree: TextTree, limit: int) -> None:
        tree.hang(self.act())

    def commit(self, text: str, *, turn_ms: float) -> None:
        self.act()

    def close(self) -> None:
        self.act()


def raises(error: BaseException) -> Callable[[], Piece]:
    def act() -> Piece:
        raise error

    return act


@pytest.mark.parametrize(
    "drafter",
    [
        Odd(raises(MemoryError()), at_open=True),
        Odd(raises(RuntimeError("the engine is broken"))),
        Odd(raises(Panic("in native code"))),
    ],
    ids=["open", "grow", "panic"],
)
async def test_the_answer_does_not_depend_on_drafts(
    drafter: Odd, caplog: pytest.LogCaptureFixture
) -> None:
    """The verifier hears that no drafts will come, and goes on alone."""

    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        yield opened()
        assert [request async for request in requests] == []
        for at, letter in enumerate("ABC"):
            yield VerifyResponse(verdict=Verdict(base_bytes=at, text=letter, token_ids=[at]))
        yield finished()

    async with both(script, drafter) as (channel, _):
        responses, error = await generate(channel)
    assert error is None
    assert "".join(response.delta.text for response in responses) == "ABC"
    said = [r for r in caplog.records if r.levelno == logging.WARNING and "draft" in r.name]
    assert len(said) == 1


async def test_odd_pieces_do_not_end_an_answer_while_it_runs() -> None:
    """No text, no number, too much, whatever is likely or not: all is dropped or accepted."""
    odd = [b"", b"\x00", b"\xff\xfe", b"\xed\xa0\xbd", b"<|im_end|>", b" " * 5_000_000, b"A draft"]
    logprobs = itertools.cycle([-0.5, 0.5, math.nan, math.inf, -math.inf])
    pieces = itertools.cycle([*map(bytes, odd), None])

    def act() -> Piece:
        text = next(pieces)
        return Piece(text or b"", next(logprobs), ends=text is None)

    async with both(honest, Odd(act)) as (channel, played):
        responses, error = await generate(channel)
    assert error is None
    assert "".join(response.delta.text for response in responses) == ANSWER
    sent = [piece for request in played.requests for piece in request.draft.pieces]
    assert sent
    assert all(math.isfinite(piece.logprob) and piece.logprob <= 0 for piece in sent)


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


async def test_addresses_are_checked() -> None:
    for verify, listen in (("nowhere", "127.0.0.1:0"), ("127.0.0.1:1", "nowhere")):
        with pytest.raises(InvalidRequestError, match="HOST:PORT"):
            DraftNode(verify, listen)


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
        node = DraftNode(verify, "127.0.0.1:0")
        address = await node.start()
        await node.serve(LoadedDrafter(LookupDrafter(), "scripted", "lookup"))
        async with dial(address) as channel:
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
