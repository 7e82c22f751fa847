"""The containers' health check, run as they run it, against a real server."""

import asyncio
import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from anydraft.rpc.server import NodeServer
from anydraft.v1.generation_pb2 import DESCRIPTOR
from anydraft.v1.generation_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)
from anydraft.v1.server_pb2_grpc import add_ServerServiceServicer_to_server
from draft_node.drafters.lookup import LookupDrafter
from draft_node.lifecycle import DraftNode
from draft_node.load import LoadedDrafter
from tests.deploy.files import DEPLOY, image_of
from tests.draft.played import DescribedNode

GENERATION = DESCRIPTOR.services_by_name["GenerationService"].full_name


@pytest_asyncio.fixture
async def node() -> AsyncIterator[tuple[NodeServer, str]]:
    server = NodeServer("127.0.0.1:0")
    add_GenerationServiceServicer_to_server(GenerationServiceServicer(), server.server)
    add_ServerServiceServicer_to_server(DescribedNode(), server.server)
    address = await server.start()
    yield server, address
    await server.stop(0)


async def _check(*arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(DEPLOY / "healthcheck.py"),
        *arguments,
        stderr=asyncio.subprocess.PIPE,
        cwd="/",
    )
    _, errors = await process.communicate()
    return process.returncode, errors.decode()


async def test_healthy_once_the_node_is_ready(node: tuple[NodeServer, str]) -> None:
    server, address = node
    code, reason = await _check(address)
    assert (code, reason) == (
        1,
        f"{address} is not healthy: {GENERATION} is NOT_SERVING\n",
    )
    await server.set_ready([GENERATION])
    assert await _check(address) == (0, "")


async def test_a_node_that_only_drafts_is_healthy_once_it_does() -> None:
    node = DraftNode(None, "127.0.0.1:0")
    address = await node.start()
    try:
        assert await _check(address) == (
            1,
            f"{address} is not healthy: anydraft.v1.DraftingService is NOT_SERVING\n",
        )
        await node.serve(LoadedDrafter(LookupDrafter(), "lookup", "test"))
        assert await _check(address) == (0, "")
    finally:
        await node.stop()


async def test_unhealthy_where_nothing_listens(node: tuple[NodeServer, str]) -> None:
    server, address = node
    await server.stop(0)
    code, reason = await _check(address)
    assert code == 1
    assert reason.startswith(f"{address} is not healthy: UNAVAILABLE: ")


async def test_bad_usage_is_unhealthy() -> None:
    assert await _check() == (1, "usage: healthcheck.py HOST:PORT\n")


@pytest.mark.parametrize("dockerfile", ["draft.Dockerfile", "verify.Dockerfile"])
def test_the_images_run_this_script(dockerfile: str) -> None:
    image = image_of(dockerfile)
    health = image.last("HEALTHCHECK")
    words = health.value.split(" ", 1)
    assert words[0] == "CMD"
    copied = [copy.value.split() for copy in image.all("COPY") if "from" not in copy.flags]
    assert ["deploy/healthcheck.py", "/usr/local/lib/anydraft/healthcheck.py"] in copied
    assert words[1].startswith('["python", "/usr/local/lib/anydraft/healthcheck.py", ')
    assert float(health.flags["timeout"].removesuffix("s")) > 3


def test_the_export_has_no_health() -> None:
    assert image_of("verify.Dockerfile", "export").last("HEALTHCHECK").value == "NONE"
