"""Apps that ask a verify node, which has draft nodes beside it draft: over real gRPC."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from transformers import PreTrainedModel

from anydraft import Client
from anydraft.rpc.channel import dial, dial_sync
from anydraft.rpc.server import NodeServer
from anydraft.text.detokenizer import StreamingDetokenizer
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.drafting_pb2 import DraftingOpened, DraftRequest, DraftResponse
from anydraft.v1.drafting_pb2_grpc import (
    DraftingServiceServicer,
    add_DraftingServiceServicer_to_server,
)
from anydraft.v1.generation_pb2 import GenerateRequest
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.prompt_pb2 import GenerationSpec, Prompt, StopConditions
from anydraft.v1.server_pb2 import NODE_ROLE_DRAFT, GetServerInfoRequest
from anydraft.v1.server_pb2_grpc import ServerServiceStub, add_ServerServiceServicer_to_server
from anydraft.v1.verification_pb2 import Draft, DraftPiece
from tests import models_zoo, nodes, tokenizers_zoo
from tests.draft.played import DescribedNode, described
from tests.greedy import decided_answer
from tests.integration.drafters import KnowingDrafter, RandomDrafter
from tests.integration.test_exact import text_of
from tests.sampled import decided_seeds, drawn_answer
from verify_node.drafter_pool import DrafterPool
from verify_node.lifecycle import VerifyNode
from verify_node.scheduler import Scheduler
from verify_node.served_model import ServedModel

PROMPT = "The verifier checks"
TOKENS = 100


class Target:
    """A tiny model, and its greedy answer to PROMPT according to `transformers`."""

    def __init__(self) -> None:
        self.tokenizer = TextTokenizer(tokenizers_zoo.build("gpt2"))
        self.prompt_ids = self.tokenizer.encode(PROMPT, add_special_tokens=True)
        self.model, self.ids = self._decided()
        self._step_s = 0.0
        head = self.model.get_output_embeddings()
        head.register_forward_pre_hook(lambda *_: time.sleep(self._step_s))

    @property
    def text(self) -> str:
        return text_of(self.tokenizer, self.ids)

    @property
    def shown(self) -> str:
        detokenizer = StreamingDetokenizer(self.tokenizer, keep_special=False)
        return detokenizer.push(self.ids) + detokenizer.flush()

    def served(self, *, step_s: float = 0.0, **limits: int) -> ServedModel:
        """`step_s`: how much longer each step takes, so that something may happen meanwhile."""
        self._step_s = 0.0
        served = nodes.served(self.model, self.tokenizer, **limits)
        self._step_s = step_s
        return served

    def _decided(self) -> tuple[PreTrainedModel, list[int]]:
        for seed in count(3):
            model = models_zoo.build("llama", seed=seed)
            model.generation_config.eos_token_id = None
            ids = decided_answer(model, self.prompt_ids, max_new_tokens=TOKENS)
            if ids is not None:
                return model, ids
        raise AssertionError


@pytest.fixture(scope="module")
def target() -> Target:
    return Target()


def scheduler(model: ServedModel) -> Scheduler:
    assert isinstance(model.target, Scheduler)
    return model.target


def ask(address: str, **options: Any) -> Any:
    with Client(address) as client:
        return client.generate(PROMPT, max_new_tokens=TOKENS, timeout=60, **options).result()


def until_drafted(address: str, target: Target) -> Any:
    """Asks again until an answer was drafted; all of them are right."""
    for _ in range(100):
        answer = ask(address)
        assert list(answer.token_ids) == target.ids
        if answer.stats.accepted > TOKENS // 2:
            return answer
    raise AssertionError("nobody drafts")


def test_apps_that_know_no_draft_node_get_drafted_answers(target: Target) -> None:
    """Greedy as `generate`, drawn as plain passes draw; in far fewer steps."""
    drafter = KnowingDrafter({PROMPT: target.text})
    options = {"temperature": 0.8, "top_p": 0.9}
    seeds = list(islice(decided_seeds(target.model, target.prompt_ids, 48, **options), 2))
    with (
        nodes.draft_node(drafter, None) as draft,
        nodes.verify_node(target.served(), draft) as verify,
    ):
        answer = until_drafted(verify, target)
        assert answer.stats.rounds < TOKENS * 0.75
        accepted = 0
        for seed in seeds:
            drawn = drawn_answer(target.model, target.prompt_ids, 48, seed=seed, **options)
            assert drawn is not None
            drafter.truths[PROMPT] = text_of(target.tokenizer, drawn)
            with Client(verify) as client:
                asked = client.generate(PROMPT, max_new_tokens=48, seed=seed, **options).result()
            assert list(asked.token_ids) == drawn
            accepted += asked.stats.accepted
    assert accepted > 0


def test_drafters_on_the_targets_own_cores_take_turns(target: Target) -> None:
    drafter = KnowingDrafter({PROMPT: target.text})
    with (
        nodes.draft_node(drafter, None) as draft,
        nodes.verify_node(target.served(), draft, in_turn=True) as verify,
    ):
        for _ in range(3):
            assert list(ask(verify).token_ids) == target.ids


@pytest.mark.parametrize("in_turn", [False, True])
def test_a_pool_without_anybody(target: Target, in_turn: bool) -> None:
    with nodes.verify_node(target.served(), free_address(), in_turn=in_turn) as verify:
        answer = ask(verify)
    assert list(answer.token_ids) == target.ids
    assert answer.stats.rounds <= TOKENS


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_a_drafter_that_comes_later(target: Target) -> None:
    """An answer begins alone, and is drafted from where it is when somebody comes."""
    address = free_address()
    with (
        ExitStack() as stack,
        nodes.verify_node(target.served(step_s=0.03), address) as verify,
        Client(verify) as client,
    ):
        answer = client.generate(PROMPT, max_new_tokens=TOKENS, timeout=60)
        deltas = iter(answer)
        assert next(deltas)
        drafter = KnowingDrafter({PROMPT: target.text}, error_rate=0.0)
        stack.enter_context(nodes.draft_node(drafter, None, address))
        result = answer.result()
        assert list(result.token_ids) == target.ids
        assert result.stats.accepted > TOKENS // 4


@contextmanager
def knowing_process(truths: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "tests.integration.knowing_node", str(truths)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def the_busy_one(drafters: dict[subprocess.Popen[str], str]) -> subprocess.Popen[str]:
    """That which drafts now, once one does."""
    for _ in range(100):
        for process, address in drafters.items():
            with dial_sync(address) as channel:
                asked = ServerServiceStub(channel).GetServerInfo(GetServerInfoRequest(), timeout=5)
            if asked.info.num_drafting_sessions:
                return process
    raise AssertionError("nobody drafts")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_drafter_that_is_killed_costs_drafts_only(
    target: Target, tmp_path: Path, number: signal.Signals
) -> None:
    """Of two; the session goes on with the other one. Then that one, too."""
    truths = tmp_path / "truths.json"
    truths.write_text(json.dumps({PROMPT: target.text}))
    with ExitStack() as stack:
        drafters = dict(stack.enter_context(knowing_process(truths)) for _ in range(2))
        served = target.served(step_s=0.03)
        verify = stack.enter_context(nodes.verify_node(served, *drafters.values()))
        until_drafted(verify, target)
        while drafters:
            client = stack.enter_context(Client(verify))
            answer = client.generate(PROMPT, max_new_tokens=TOKENS, timeout=60)
            deltas = iter(answer)
            assert next(deltas)
            process = the_busy_one(drafters)
            process.send_signal(number)
            process.wait()
            del drafters[process]
            result = answer.result()
            assert list(result.token_ids) == target.ids
            assert result.text == target.shown
            if drafters:
                assert result.stats.accepted > TOKENS // 4
        alone = ask(verify)
        assert list(alone.token_ids) == target.ids


@contextmanager
def played_drafter(script: Callable[..., AsyncIterator[DraftResponse]]) -> Iterator[str]:
    """A draft node whose sessions a test plays."""

    class Played(DraftingServiceServicer):
        async def Draft(  # noqa: N802
            self, request_iterator: AsyncIterator[DraftRequest], context: Any
        ) -> AsyncIterator[DraftResponse]:
            async for response in script(request_iterator, context):
                yield response

    async def start() -> NodeServer:
        node = NodeServer("127.0.0.1:0")
        add_DraftingServiceServicer_to_server(Played(), node.server)
        info = described(role=NODE_ROLE_DRAFT, num_drafting_sessions=0, max_drafting_sessions=8)
        add_ServerServiceServicer_to_server(DescribedNode(info), node.server)
        addresses.append(await node.start())
        await node.set_ready(node.server.service_names)
        return node

    addresses: list[str] = []
    with nodes.loop_thread() as loop:
        node = loop.run(start())
        try:
            yield addresses[0]
        finally:
            loop.run(node.stop(0))


async def _opened(requests: AsyncIterator[DraftRequest]) -> DraftResponse:
    assert (await anext(requests)).HasField("open")
    return DraftResponse(opened=DraftingOpened(num_sessions=1, max_sessions=8))


async def flooding(requests: Any, context: Any) -> AsyncIterator[DraftResponse]:
    """Drafts without end: wrong bases, pieces below themselves and below nothing, ids out of
    order, odd numbers and bytes, ends in the middle."""
    rng = random.Random(7)
    yield await _opened(requests)
    while True:
        count = rng.randint(0, 40)
        pieces = [
            DraftPiece(
                text=rng.choice([b"", b"x", b"\xff\xfe", b" the", rng.randbytes(300)]),
                logprob=rng.choice([0.0, -1.0, 5.0, float("nan"), float("-inf")]),
                parent=rng.randint(0, 60),
                ends=rng.random() < 0.1,
            )
            for _ in range(count)
        ]
        draft = Draft(
            first_piece=rng.randint(0, 60), base_bytes=rng.choice([0, 1, 7, 2**40]), pieces=pieces
        )
        for index, piece in enumerate(draft.pieces):
            piece.parent = min(piece.parent, draft.first_piece + index)
        if draft.pieces and draft.first_piece == 0:
            draft.first_piece = 1
        yield DraftResponse(draft=draft)


async def counting_wildly(requests: Any, context: Any) -> AsyncIterator[DraftResponse]:
    yield await _opened(requests)
    piece = DraftPiece(text=b"x", parent=2**64 - 1)
    yield DraftResponse(draft=Draft(first_piece=2**64 - 1, pieces=[piece]))


async def leaving(requests: Any, context: Any) -> AsyncIterator[DraftResponse]:
    yield await _opened(requests)


async def cancelling(requests: Any, context: Any) -> AsyncIterator[DraftResponse]:
    yield await _opened(requests)
    await context.abort(grpc.StatusCode.CANCELLED, "I do not want to")


async def deaf(requests: Any, context: Any) -> AsyncIterator[DraftResponse]:
    yield await _opened(requests)
    await asyncio.Event().wait()


async def mute(requests: Any, context: Any) -> AsyncIterator[DraftResponse]:
    await asyncio.Event().wait()
    yield DraftResponse()


@pytest.mark.parametrize(
    "script", [flooding, counting_wildly, leaving, cancelling, deaf, mute], ids=lambda s: s.__name__
)
def test_a_drafter_that_means_harm_changes_nothing(target: Target, script: Any) -> None:
    with (
        played_drafter(script) as draft,
        nodes.verify_node(target.served(), draft) as verify,
    ):
        for _ in range(3):
            assert list(ask(verify).token_ids) == target.ids


def test_a_good_drafter_beside_one_that_means_harm(target: Target) -> None:
    knowing = KnowingDrafter({PROMPT: target.text}, error_rate=0.0)
    with (
        played_drafter(counting_wildly) as bad,
        nodes.draft_node(knowing, None) as good,
        nodes.verify_node(target.served(step_s=0.01), bad, good) as verify,
    ):
        until_drafted(verify, target)


def test_random_drafts(target: Target) -> None:
    with (
        nodes.draft_node(RandomDrafter(), None) as draft,
        nodes.verify_node(target.served(), draft) as verify,
    ):
        for _ in range(3):
            assert list(ask(verify).token_ids) == target.ids


@asynccontextmanager
async def running(
    model: ServedModel, *drafters: str
) -> AsyncIterator[tuple[VerifyNode, grpc.aio.Channel]]:
    node = VerifyNode("127.0.0.1:0", pool=DrafterPool(drafters))
    address = await node.start()
    await node.serve(model)
    try:
        async with dial(address) as channel:
            yield node, channel
    finally:
        await node.stop()


async def num_drafting(channel: grpc.aio.Channel) -> int:
    response = await ServerServiceStub(channel).GetServerInfo(GetServerInfoRequest())
    return int(response.info.num_drafting_sessions)


async def test_cancels_at_any_moment_leave_nothing_on_either_node(target: Target) -> None:
    model = target.served(step_s=0.002, max_sessions=4)
    spec = GenerationSpec(
        prompt=Prompt(text=PROMPT), stop=StopConditions(max_new_tokens=120, ignore_eos=True)
    )
    rng = random.Random(3)
    with nodes.draft_node(KnowingDrafter({PROMPT: target.text}), None) as draft:
        async with running(model, draft) as (_, channel), dial(draft) as beside:
            were_drafted = 0
            for index in range(60):
                call = GenerationServiceStub(channel).Generate(GenerateRequest(spec=spec))
                reading = asyncio.create_task(_read(call))
                for _ in range(index // 2):
                    await asyncio.sleep(0)
                await asyncio.sleep(rng.choice([0.0, 0.005, 0.05]))
                were_drafted += await num_drafting(beside) > 0
                call.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            for _ in range(1000):
                if not await num_drafting(beside) and not scheduler(model).num_sessions:
                    break
                await asyncio.sleep(0.01)
            assert await num_drafting(beside) == 0
            assert scheduler(model).num_sessions == 0
            assert were_drafted > 5


async def _read(call: Any) -> None:
    async for _ in call:
        pass
