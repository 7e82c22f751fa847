"""A draft node is ready when its verify node is, and names the target that answers."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from anydraft.rpc import health
from anydraft.rpc.health import Health
from anydraft.rpc.server import NodeServer
from anydraft.v1.generation_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)
from anydraft.v1.server_pb2 import NODE_ROLE_DRAFT, GetServerInfoRequest, ServerInfo
from anydraft.v1.server_pb2_grpc import ServerServiceStub, add_ServerServiceServicer_to_server
from anydraft.v1.verification_pb2_grpc import add_VerificationServiceServicer_to_server
from anydraft.version import PROTOCOL_REVISION, VERSION
from draft_node import verify_watch
from draft_node.drafters.lookup import LookupDrafter
from draft_node.lifecycle import DraftNode
from tests.draft.played import (
    DescribedNode,
    PlayedVerifier,
    described,
    draft_node,
    honest,
    verify_node,
)

GENERATION = "anydraft.v1.GenerationService"
VERIFICATION = "anydraft.v1.VerificationService"
SERVER = "anydraft.v1.ServerService"


@asynccontextmanager
async def node_behind(verify: str) -> AsyncIterator[grpc.aio.Channel]:
    async with draft_node(verify, LookupDrafter()) as channel:
        yield channel


async def described_node(listen: str, info: ServerInfo) -> tuple[NodeServer, str]:
    """Listens, and is not ready."""
    node = NodeServer(listen)
    add_VerificationServiceServicer_to_server(PlayedVerifier(honest), node.server)
    add_ServerServiceServicer_to_server(DescribedNode(info), node.server)
    return node, await node.start()


async def server_info(channel: grpc.aio.Channel) -> ServerInfo:
    response = await ServerServiceStub(channel).GetServerInfo(GetServerInfoRequest())
    return response.info


async def becomes(channel: grpc.aio.Channel, expected: Health) -> None:
    for _ in range(500):
        if await health.check(channel, GENERATION, timeout_s=5) is expected:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"health never was {expected.name}")


async def stays_bad(channel: grpc.aio.Channel) -> None:
    """Past the first look, whose end the node's description waits for."""
    await server_info(channel)
    assert await health.check(channel, GENERATION, timeout_s=5) is Health.NOT_SERVING
    assert await health.check(channel, SERVER, timeout_s=5) is Health.SERVING
    assert await health.check(channel, "", timeout_s=5) is Health.SERVING


async def test_health_follows_a_verify_node_that_comes_goes_and_comes_back() -> None:
    async with verify_node(honest) as (address, _):
        pass
    async with node_behind(address) as channel:
        await stays_bad(channel)
        for _ in range(2):
            node, _ = await described_node(address, described())
            await node.set_ready([VERIFICATION])
            await becomes(channel, Health.SERVING)
            await node.stop(0)
            await becomes(channel, Health.NOT_SERVING)
        assert await health.check(channel, "", timeout_s=5) is Health.SERVING


async def test_health_follows_a_verify_node_that_loads_and_fails() -> None:
    node, address = await described_node("127.0.0.1:0", described())
    async with node_behind(address) as channel:
        await stays_bad(channel)
        await node.set_ready([VERIFICATION])
        await becomes(channel, Health.SERVING)
        await node.set_ready([VERIFICATION], False)
        await becomes(channel, Health.NOT_SERVING)
        await node.set_ready([VERIFICATION])
        await becomes(channel, Health.SERVING)
    await node.stop(0)


async def test_a_verify_node_that_stops_does_not_wait_for_its_watchers() -> None:
    async with verify_node(honest) as (address, _), node_behind(address) as channel:
        await becomes(channel, Health.SERVING)
        node, other = await described_node("127.0.0.1:0", described())
        await node.set_ready([VERIFICATION])
        async with node_behind(other) as watching:
            await becomes(watching, Health.SERVING)
            await asyncio.wait_for(node.stop(60), 10)


@pytest.mark.parametrize(
    ("info", "problem"),
    [
        (described(role=NODE_ROLE_DRAFT), "is no verify node"),
        (described(protocol_revision=PROTOCOL_REVISION + 1), "same version on both"),
    ],
)
async def test_what_answers_there_must_be_a_verify_node_of_our_revision(
    info: ServerInfo, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    node, address = await described_node("127.0.0.1:0", info)
    await node.set_ready([VERIFICATION])
    async with node_behind(address) as channel:
        await stays_bad(channel)
        assert not (await server_info(channel)).model
    await node.stop(0)
    (said,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert problem in said
    assert address in said


async def test_a_draft_node_is_no_verify_node() -> None:
    async with verify_node(honest) as (address, _):
        node = DraftNode(address, "127.0.0.1:0")
        async with node_behind(await node.start()) as channel:
            await stays_bad(channel)
        await node.stop()


async def test_another_server_is_no_verify_node() -> None:
    node = NodeServer("127.0.0.1:0")
    add_GenerationServiceServicer_to_server(GenerationServiceServicer(), node.server)
    address = await node.start()
    await node.set_ready([GENERATION])
    async with node_behind(address) as channel:
        await stays_bad(channel)
    await node.stop(0)


async def test_something_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_watch, "_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        async with node_behind(f"{host}:{port}") as channel:
            await stays_bad(channel)
            assert (await server_info(channel)).role == NODE_ROLE_DRAFT


async def test_the_node_names_the_target_and_its_assistant() -> None:
    node, address = await described_node("127.0.0.1:0", described(model=""))
    expected = ServerInfo(
        role=NODE_ROLE_DRAFT,
        model="",
        version=VERSION,
        protocol_revision=PROTOCOL_REVISION,
        engine="prompt lookup",
        context_tokens=4096,
        has_chat_template=True,
        vocabulary_size=50_000,
        verify_address=address,
        assistant="scripted",
        dtype="bfloat16",
        num_drafting_sessions=0,
        max_drafting_sessions=64,
    )
    async with node_behind(address) as channel:
        assert await server_info(channel) == expected
        await node.stop(0)
        # Another target, after a restart with another --model.
        node, _ = await described_node(address, described(model="bigger"))
        await node.set_ready([VERIFICATION])
        await becomes(channel, Health.SERVING)
        expected.model = "bigger"
        assert await server_info(channel) == expected
        await node.stop(0)
        await becomes(channel, Health.NOT_SERVING)
        assert await server_info(channel) == expected, "the last one known"


async def test_the_node_says_what_it_is_without_a_verify_node() -> None:
    async with node_behind("127.0.0.1:9") as channel:
        assert await server_info(channel) == ServerInfo(
            role=NODE_ROLE_DRAFT,
            version=VERSION,
            protocol_revision=PROTOCOL_REVISION,
            engine="prompt lookup",
            verify_address="127.0.0.1:9",
            assistant="scripted",
            num_drafting_sessions=0,
            max_drafting_sessions=64,
        )
