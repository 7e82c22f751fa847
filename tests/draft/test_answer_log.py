"""One line for each answer, without its text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from anydraft.errors import ResourceExhaustedError
from anydraft.rpc.channel import dial
from anydraft.rpc.status import abort
from anydraft.text import TextTokenizer
from anydraft.v1.generation_pb2 import GenerateRequest
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.result_pb2 import FINISH_REASON_LENGTH, Finished, GenerationStats
from anydraft.v1.verification_pb2 import Verdict, VerifyResponse
from draft_node.lifecycle import DraftNode
from tests.draft.played import (
    ANSWER,
    SPEC,
    assistant,
    both,
    draft_node,
    generate,
    opened,
    verify_node,
)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """The lines about answers so far, at the level that a node shows by default."""
    caplog.set_level(logging.INFO)
    names = ("anydraft.rpc.answer_log",)
    return lambda: [r.getMessage() for r in caplog.records if r.name in names]


async def until_said(lines: Any) -> str:
    for _ in range(1000):
        if said := lines():
            (line,) = said
            assert "Tell me" not in line
            assert "draft is checked" not in line
            return str(line)
        await asyncio.sleep(0.005)
    raise AssertionError("nothing was said")


async def test_a_finished_answer(tokenizer: TextTokenizer, lines: Any) -> None:
    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        yield opened()
        await anext(requests)
        yield VerifyResponse(verdict=Verdict(text=ANSWER, token_ids=[1, 2, 3, 4]))
        stats = GenerationStats(completion_tokens=4, drafted_tokens=8, accepted_tokens=2)
        yield VerifyResponse(finished=Finished(reason=FINISH_REASON_LENGTH, stats=stats))

    async with both(script, assistant(tokenizer)) as (channel, _):
        responses, error = await generate(channel)
    assert error is None
    line = await until_said(lines)
    assert line.startswith("answer 's' ended (length): 4 tokens in ")
    pieces = responses[-1].finished.stats.sent_pieces
    assert line.endswith(f" tokens/s, 2 of 8 draft tokens accepted, {pieces} pieces sent")
    assert pieces >= 1


async def test_a_cancelled_answer(tokenizer: TextTokenizer, lines: Any) -> None:
    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        yield opened(0)
        yield VerifyResponse(verdict=Verdict(text="A", token_ids=[5]))
        async for _ in requests:
            pass

    async with both(script, assistant(tokenizer)) as (channel, _):
        call = GenerationServiceStub(channel).Generate(GenerateRequest(spec=SPEC))
        async for response in call:
            if response.HasField("delta"):
                call.cancel()
                break
        line = await until_said(lines)
    assert line.startswith("answer 's' ended (cancelled): 1 tokens in ")
    assert line.endswith("accepted draft tokens not known, 0 pieces sent")


async def test_an_answer_that_fails(tokenizer: TextTokenizer, lines: Any) -> None:
    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        yield opened(0)

    async with both(script, assistant(tokenizer)) as (channel, _):
        await generate(channel)
        assert (await until_said(lines)).startswith("answer 's' ended (TRUNCATED_STREAM): 0 tokens")


async def test_a_refusal(tokenizer: TextTokenizer, lines: Any) -> None:
    async def script(played: Any, requests: Any, context: Any) -> AsyncIterator[VerifyResponse]:
        await anext(requests)
        await abort(context, ResourceExhaustedError("Full. Try later.", reason="KV_FULL"))
        yield opened()

    async with both(script, assistant(tokenizer)) as (channel, _):
        await generate(channel)
        assert (await until_said(lines)).startswith("answer refused: KV_FULL, after ")


async def test_a_node_that_loads(tokenizer: TextTokenizer, lines: Any) -> None:
    node = DraftNode("127.0.0.1:9", "127.0.0.1:0")
    async with dial(await node.start()) as channel:
        await generate(channel)
        assert (await until_said(lines)).startswith("answer refused: MODEL_LOADING, after ")
    await node.stop()


async def test_an_absent_verify_node(tokenizer: TextTokenizer, lines: Any) -> None:
    async with verify_node(lambda *_: None) as (address, _):
        pass
    async with draft_node(address, assistant(tokenizer)) as channel:
        await generate(channel)
        line = await until_said(lines)
    assert line.startswith("answer refused: VERIFY_NODE_UNREACHABLE, after ")
