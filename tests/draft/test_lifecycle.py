"""A node listens first and loads later; whoever asks meanwhile is told."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from anydraft.errors import FailedPreconditionError, NotFoundError, UnavailableError
from anydraft.rpc import health
from anydraft.rpc.channel import dial
from anydraft.rpc.health import Health
from anydraft.text import TextTokenizer
from anydraft.v1.server_pb2 import GetServerInfoRequest
from anydraft.v1.server_pb2_grpc import ServerServiceStub
from draft_node.drafters.lookup import LookupDrafter
from draft_node.lifecycle import DraftNode
from draft_node.load import DraftSettings, LoadedDrafter, load_lookup
from tests.draft.played import ANSWER, assistant, generate, honest, verify_node

GENERATION = "anydraft.v1.GenerationService"
LOOKUP = LoadedDrafter(LookupDrafter(), "lookup", "test")


class Assistant:
    """Loads when it is told to, or fails."""

    def __init__(self, loaded: LoadedDrafter, error: Exception | None = None) -> None:
        self.may_load = threading.Event()
        self._loaded = loaded
        self._error = error

    def load(self) -> LoadedDrafter:
        assert self.may_load.wait(30)
        if self._error is not None:
            raise self._error
        return self._loaded


@asynccontextmanager
async def running(
    verify: str, load: Callable[[], LoadedDrafter], meanwhile: LoadedDrafter | None = None
) -> AsyncIterator[tuple[grpc.aio.Channel, asyncio.Task[None]]]:
    node = DraftNode(verify, "127.0.0.1:0")
    address = await node.start()
    life = asyncio.create_task(node.run_until_signal(load, 0.0, meanwhile=meanwhile))
    try:
        async with dial(address) as channel:
            yield channel, life
    finally:
        await node.stop()
        await asyncio.gather(life, return_exceptions=True)


async def until_ready(channel: grpc.aio.Channel) -> None:
    for _ in range(500):
        if await health.check(channel, GENERATION, timeout_s=5) is Health.SERVING:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it was never ready")


async def assistant_of(channel: grpc.aio.Channel) -> str:
    response = await ServerServiceStub(channel).GetServerInfo(GetServerInfoRequest())
    return response.info.assistant or response.info.engine


async def test_a_node_that_loads_says_so(tokenizer: TextTokenizer) -> None:
    loading = Assistant(LoadedDrafter(assistant(tokenizer), "small", "test"))
    async with (
        verify_node(honest) as (address, _),
        running(address, loading.load) as (channel, _),
    ):
        assert await assistant_of(channel) == "loading"
        assert await health.check(channel, GENERATION, timeout_s=5) is Health.NOT_SERVING
        _, error = await generate(channel)
        assert isinstance(error, UnavailableError)
        assert error.reason == "MODEL_LOADING"
        loading.may_load.set()
        await until_ready(channel)
        assert await assistant_of(channel) == "small"
        responses, error = await generate(channel)
    assert error is None
    assert "".join(response.delta.text for response in responses) == ANSWER


async def test_an_assistant_that_cannot_be_loaded_ends_the_node() -> None:
    error = NotFoundError("No such assistant. Take another.", reason="MODEL_NOT_FOUND")
    loading = Assistant(LOOKUP, error)
    loading.may_load.set()
    async with running("127.0.0.1:9", loading.load) as (_, life):
        with pytest.raises(NotFoundError):
            await asyncio.wait_for(life, 10)


async def test_lookup_meanwhile(tokenizer: TextTokenizer, caplog: pytest.LogCaptureFixture) -> None:
    loading = Assistant(LoadedDrafter(assistant(tokenizer), "small", "test"))
    caplog.set_level(logging.INFO)
    async with (
        verify_node(honest) as (address, _),
        running(address, loading.load, load_lookup(DraftSettings(engine="lookup"))) as (channel, _),
    ):
        await until_ready(channel)
        assert await assistant_of(channel) == "prompt lookup"
        loading.may_load.set()
        for _ in range(500):
            if await assistant_of(channel) == "small":
                break
            await asyncio.sleep(0.02)
        assert await assistant_of(channel) == "small"
        responses, error = await generate(channel)
    assert error is None
    # The assistant drafts it: nothing repeats in the prompt that lookup could find.
    assert responses[-1].finished.stats.sent_pieces > 0
    ready = [r.getMessage() for r in caplog.records if "ready on" in r.getMessage()]
    assert ["prompt lookup" in line for line in ready] == [True, False]


async def test_lookup_goes_on_when_the_assistant_cannot_be_loaded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = NotFoundError("No such assistant. Take another.", reason="MODEL_NOT_FOUND")
    loading = Assistant(LOOKUP, error)
    async with (
        verify_node(honest) as (address, _),
        running(address, loading.load, load_lookup(DraftSettings(engine="lookup"))) as (
            channel,
            life,
        ),
    ):
        await until_ready(channel)
        loading.may_load.set()
        for _ in range(500):
            if "No such assistant" in caplog.text:
                break
            await asyncio.sleep(0.02)
        assert "goes on with prompt lookup alone: No such assistant. Take another." in caplog.text
        assert not life.done()
        assert await health.check(channel, GENERATION, timeout_s=5) is Health.SERVING


async def test_a_signal_does_not_wait_for_loading() -> None:
    loading = Assistant(LOOKUP)
    async with running("127.0.0.1:9", loading.load) as (channel, life):
        assert await assistant_of(channel) == "loading"
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(life, 10)
    loading.may_load.set()


async def test_a_busy_port_shows_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        node = DraftNode("127.0.0.1:9", f"127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(FailedPreconditionError, match="cannot listen"):
            await node.start()
        await node.stop()
