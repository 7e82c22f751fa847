"""A draft node over loopback, and a verify node that a test plays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from anydraft.errors import AnydraftError
from anydraft.rpc.channel import KEEP_ALIVE, KeepAlive, dial
from anydraft.rpc.server import NodeServer
from anydraft.rpc.status import from_rpc_error
from anydraft.text import TextTokenizer
from anydraft.v1.generation_pb2 import GenerateRequest, GenerateResponse
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.prompt_pb2 import GenerationSpec, Prompt, SamplingParams, StopConditions
from anydraft.v1.result_pb2 import FINISH_REASON_EOS, Finished, GenerationStats, Opened
from anydraft.v1.server_pb2 import (
    NODE_ROLE_VERIFY,
    GetServerInfoRequest,
    GetServerInfoResponse,
    ServerInfo,
)
from anydraft.v1.server_pb2_grpc import ServerServiceServicer, add_ServerServiceServicer_to_server
from anydraft.v1.verification_pb2 import VerifyRequest, VerifyResponse
from anydraft.v1.verification_pb2_grpc import (
    VerificationServiceServicer,
    add_VerificationServiceServicer_to_server,
)
from anydraft.version import PROTOCOL_REVISION
from draft_node.drafters.assistant import AssistantDrafter
from draft_node.drafters.base import Drafter
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
    add_ServerServiceServicer_to_server(DescribedNode(), node.server)
    address = await node.start()
    await node.set_ready(node.server.service_names)
    try:
        yield address, played
    finally:
        await node.stop(0)


@asynccontextmanager
async def draft_node(
    verify: str, drafter: Drafter, keep_alive: KeepAlive = KEEP_ALIVE, **settings: int
) -> AsyncIterator[grpc.aio.Channel]:
    node = DraftNode(verify, "127.0.0.1:0", keep_alive=keep_alive, **settings)
    address = await node.start()
    try:
        await node.serve(LoadedDrafter(drafter, "scripted", drafter.description))
        async with dial(address) as channel:
            yield channel
    finally:
        await node.stop()


@asynccontextmanager
async def both(
    script: Script, drafter: Drafter, **settings: int
) -> AsyncIterator[tuple[grpc.aio.Channel, PlayedVerifier]]:
    async with (
        verify_node(script) as (address, played),
        draft_node(address, drafter, **settings) as channel,
    ):
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
    facts = Opened(session_id="s", model="target", credit_pieces=credit, credit_bytes=65536)
    return VerifyResponse(opened=facts)


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
        if request.HasField("close"):
            return
        verifier.take(request.draft)
        yield VerifyResponse(verdict=verifier.step())
        if verifier.finished:
            yield finished()
            return


def described(**facts: Any) -> ServerInfo:
    """What a verify node says of itself, but for `facts`."""
    values: dict[str, Any] = {
        "role": NODE_ROLE_VERIFY,
        "model": "big",
        "version": "9.9",
        "protocol_revision": PROTOCOL_REVISION,
        "engine": "target engine",
        "context_tokens": 4096,
        "has_chat_template": True,
        "vocabulary_size": 50_000,
        "dtype": "bfloat16",
    }
    return ServerInfo(**{**values, **facts})


@dataclass
class DescribedNode(ServerServiceServicer):
    """Says `info`."""

    info: ServerInfo = field(default_factory=described)

    async def GetServerInfo(  # noqa: N802
        self, request: GetServerInfoRequest, context: Any
    ) -> GetServerInfoResponse:
        return GetServerInfoResponse(info=self.info)
