"""Sessions over real gRPC: none outlives its client, its answer, or a target that is gone."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from anydraft import Client
from anydraft.errors import DeadlineExceededError, InternalError, UnavailableError
from anydraft.rpc import opening
from anydraft.rpc.channel import dial
from anydraft.rpc.health import Health, check
from anydraft.rpc.status import from_rpc_error
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.generation_pb2 import GenerateRequest
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.prompt_pb2 import GenerationSpec, Prompt, StopConditions
from anydraft.v1.server_pb2 import GetServerInfoRequest
from anydraft.v1.server_pb2_grpc import ServerServiceStub
from anydraft.v1.verification_pb2 import Draft, Open, VerifyRequest
from anydraft.v1.verification_pb2_grpc import VerificationServiceStub
from anydraft.version import PROTOCOL_REVISION
from tests import models_zoo, nodes, tokenizers_zoo
from verify_node.lifecycle import SERVICES, VerifyNode
from verify_node.scheduler import Scheduler
from verify_node.served_model import ServedModel
from verify_node.session_text import SessionText
from verify_node.step_planner import StepPlanner

ENDLESS = StopConditions(max_new_tokens=300, ignore_eos=True)
VERIFICATION = SERVICES[0]


def tiny(**limits: int) -> ServedModel:
    return nodes.served(
        models_zoo.build("llama"), TextTokenizer(tokenizers_zoo.build("gpt2")), **limits
    )


def scheduler(model: ServedModel) -> Scheduler:
    assert isinstance(model.target, Scheduler)
    return model.target


@asynccontextmanager
async def running(model: ServedModel) -> AsyncIterator[tuple[VerifyNode, grpc.aio.Channel]]:
    node = VerifyNode("127.0.0.1:0")
    address = await node.start()
    await node.serve(model)
    try:
        async with dial(address) as channel:
            yield node, channel
    finally:
        await node.stop()


async def eventually(holds: Callable[[], bool], timeout_s: float = 30.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not holds() and time.monotonic() < deadline:  # noqa: ASYNC110 - a thread decides it
        await asyncio.sleep(0.005)
    return holds()


def spec(words: int = 3, stop: StopConditions = ENDLESS) -> GenerationSpec:
    return GenerationSpec(prompt=Prompt(text="word " * words), stop=stop)


async def test_cancels_while_opening_leave_no_session() -> None:
    """200 of them, on both services, at every moment from before the call is seen to after it has
    begun, with the node idle and busy. The collector is off: nothing is freed by chance."""
    model = tiny(max_sessions=8)
    target, rng = scheduler(model), random.Random(1)
    async with running(model) as (_, channel):
        busy = GenerationServiceStub(channel).Generate(GenerateRequest(spec=spec()))
        assert await anext(aiter(busy))
        gc.disable()
        try:
            for index in range(200):
                await cancelled_opening(channel, verify=index % 2 == 0, after_s=rng.random() / 50)
                if index == 100:
                    busy.cancel()
        finally:
            gc.enable()
        assert await eventually(lambda: target.num_sessions == target.kv_tokens == 0)
        answer = GenerationServiceStub(channel).Generate(
            GenerateRequest(spec=spec(stop=StopConditions(max_new_tokens=3)))
        )
        assert [r.WhichOneof("message") async for r in answer][-1] == "finished"


async def cancelled_opening(channel: grpc.aio.Channel, *, verify: bool, after_s: float) -> None:
    call: Any
    if verify:
        call = VerificationServiceStub(channel).Verify()
        opening = Open(protocol_revision=PROTOCOL_REVISION, spec=spec(60))
        await call.write(VerifyRequest(open=opening))
    else:
        call = GenerationServiceStub(channel).Generate(GenerateRequest(spec=spec(60)))
    await asyncio.sleep(after_s)
    call.cancel()


async def test_a_finished_session_is_over_though_nobody_reads_it() -> None:
    model = tiny(max_sessions=32)
    target = scheduler(model)
    async with running(model) as (_, channel):
        unread = [
            GenerationServiceStub(channel).Generate(GenerateRequest(spec=spec())) for _ in range(24)
        ]
        for call in unread:
            assert (await anext(aiter(call))).HasField("opened")
        assert await eventually(lambda: target.num_sessions == target.kv_tokens == 0)
        for call in unread:
            assert [r async for r in call][-1].HasField("finished")


async def test_a_client_that_vanishes_takes_its_session_with_it() -> None:
    model = tiny()
    target = scheduler(model)
    async with running(model) as (_, channel):
        call = VerificationServiceStub(channel).Verify()
        opening = Open(protocol_revision=PROTOCOL_REVISION, spec=spec())
        await call.write(VerifyRequest(open=opening))
        assert (await call.read()).HasField("opened")
        await channel.close()
        assert await eventually(lambda: target.num_sessions == 0)


async def test_a_stream_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_OPEN_TIMEOUT_S", 0.2)
    async with running(tiny()) as (_, channel):
        call = VerificationServiceStub(channel).Verify()
        with pytest.raises(grpc.RpcError) as caught:
            await anext(aiter(call))
        error = from_rpc_error(caught.value)
        assert isinstance(error, DeadlineExceededError)
        assert error.reason == "OPEN_TIMEOUT"


async def test_a_flood_of_drafts_is_read_no_faster_than_blocks_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 20,000 messages only so many are looked at as the answer has blocks for."""
    looked_at: list[int] = []
    draft = SessionText.draft
    monkeypatch.setattr(
        SessionText, "draft", lambda self, d: (looked_at.append(d.first_piece), draft(self, d))
    )
    async with running(tiny()) as (_, channel):
        call = VerificationServiceStub(channel).Verify()
        stop = StopConditions(max_new_tokens=20, ignore_eos=True)
        opening = Open(protocol_revision=PROTOCOL_REVISION, spec=spec(stop=stop))
        await call.write(VerifyRequest(open=opening))

        async def flood() -> None:
            for seq in range(1, 20_000):
                await call.write(VerifyRequest(draft=Draft(first_piece=seq, base_bytes=2**40)))

        flooding = asyncio.create_task(flood())
        responses = [response async for response in call]
        flooding.cancel()
        await asyncio.gather(flooding, return_exceptions=True)
    blocks = sum(response.HasField("verdict") for response in responses)
    assert responses[-1].HasField("finished")
    # One lot before the first block, and one behind each event of the session.
    assert 0 < len(looked_at) <= 64 * (blocks + 2)


async def test_a_node_answers_questions_before_it_has_a_model() -> None:
    node = VerifyNode("127.0.0.1:0")
    async with dial(await node.start()) as channel:
        assert await check(channel, "", timeout_s=30) is Health.SERVING
        assert await check(channel, VERIFICATION, timeout_s=30) is Health.NOT_SERVING
        info = (await ServerServiceStub(channel).GetServerInfo(GetServerInfoRequest())).info
        assert (info.model, info.protocol_revision) == ("", PROTOCOL_REVISION)
        call = GenerationServiceStub(channel).Generate(GenerateRequest(spec=spec()))
        with pytest.raises(grpc.RpcError) as caught:
            [response async for response in call]
        error = from_rpc_error(caught.value)
        assert isinstance(error, UnavailableError)
        assert (error.reason, error.retry_after_s) == ("MODEL_LOADING", 2.0)
        model = tiny()
        await node.serve(model)
        assert await check(channel, VERIFICATION, timeout_s=30) is Health.SERVING
        info = (await ServerServiceStub(channel).GetServerInfo(GetServerInfoRequest())).info
        assert (info.model, info.dtype) == ("tiny", "float32")
        await node.stop()


async def test_a_target_that_fails_ends_answers_and_the_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sessions hear of it, health says so, and the server ends: nobody waits for ever."""
    async with running(tiny()) as (node, channel):
        calls = [
            GenerationServiceStub(channel).Generate(GenerateRequest(spec=spec())) for _ in range(3)
        ]
        for call in calls:
            await anext(aiter(call))

        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("injected")

        monkeypatch.setattr(StepPlanner, "plan", broken)
        for call in calls:
            with pytest.raises(grpc.RpcError) as caught:
                [response async for response in call]
            error = from_rpc_error(caught.value)
            assert isinstance(error, InternalError)
            assert error.reason == "TARGET_STOPPED"
        assert await eventually(lambda: node.failure is not None)
        assert await eventually_over(channel)


async def eventually_over(channel: grpc.aio.Channel) -> bool:
    for _ in range(600):
        try:
            health = await check(channel, VERIFICATION, timeout_s=5)
        except grpc.RpcError as error:
            return error.code() is grpc.StatusCode.UNAVAILABLE
        assert health is Health.NOT_SERVING
        await asyncio.sleep(0.05)
    return False


FAILING = """
import itertools, sys
from verify_node import step_planner
from verify_node.__main__ import main
plan, steps = step_planner.StepPlanner.plan, itertools.count()
def fails(self, *args, **kwargs):
    if next(steps) == 20:
        raise MemoryError("injected")
    return plan(self, *args, **kwargs)
step_planner.StepPlanner.plan = fails
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def failing_node(target_folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A verify node as a process, whose step thread dies at its 21st step; and its address."""
    arguments = ["--model", str(target_folder), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [sys.executable, "-c", FAILING, *arguments], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        ready = next(line for line in process.stderr if "ready on" in line)
        yield process, ready.split("ready on ")[1].split()[0]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.processes
def test_a_node_whose_step_thread_dies_exits_for_its_supervisor(
    failing_node: tuple[subprocess.Popen[str], str],
) -> None:
    process, address = failing_node
    with Client(address) as client, pytest.raises(InternalError) as caught:
        client.generate("word", max_new_tokens=200, ignore_eos=True, timeout=60).result()
    assert caught.value.reason == "TARGET_STOPPED"
    assert process.wait(30) == 70
