import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from anydraft.errors import FailedPreconditionError
from anydraft.rpc.calls import answering
from anydraft.rpc.channel import dial, dial_sync
from anydraft.rpc.health import Health, check, check_sync
from anydraft.rpc.server import NodeServer
from anydraft.v1 import generation_pb2, generation_pb2_grpc

GENERATION = "anydraft.v1.GenerationService"


class Sleepy(generation_pb2_grpc.GenerationServiceServicer):
    """One response now, one after `pause_s`."""

    pause_s = 0.3

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        with answering():
            yield generation_pb2.GenerateResponse()
            await asyncio.sleep(self.pause_s)
            yield generation_pb2.GenerateResponse()


def _node(listen: str = "127.0.0.1:0") -> NodeServer:
    node = NodeServer(listen)
    generation_pb2_grpc.add_GenerationServiceServicer_to_server(Sleepy(), node.server)
    return node


async def test_health_goes_from_loading_to_ready_to_stopping() -> None:
    node = _node()
    async with dial(await node.start()) as channel:
        assert await check(channel, "", timeout_s=5) is Health.SERVING
        assert await check(channel, GENERATION, timeout_s=5) is Health.NOT_SERVING
        assert await check(channel, "no.such.Service", timeout_s=5) is Health.SERVICE_UNKNOWN
        await node.set_ready([GENERATION])
        assert await check(channel, GENERATION, timeout_s=5) is Health.SERVING

        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=GENERATION)
        )
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.create_task(node.stop(1))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
        await stopping


async def test_the_official_client_agrees_with_ours() -> None:
    node = _node()
    address = await node.start()
    async with dial(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for service in ("", GENERATION):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == await check(channel, service, timeout_s=5)
            with dial_sync(address) as sync_channel:
                ours = await asyncio.to_thread(check_sync, sync_channel, service, timeout_s=5)
            assert answer.status == ours
    await node.stop(0)


async def test_reflection_lists_every_service() -> None:
    node = _node()
    async with dial(await node.start()) as channel:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        await call.done_writing()
        names = {service.name for service in answer.list_services_response.service}
    await node.stop(0)
    assert names == {
        GENERATION,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


async def test_port_0_takes_a_free_one() -> None:
    first, second = _node(), _node()
    addresses = {await first.start(), await second.start()}
    assert len(addresses) == 2
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    assert not any(address.endswith(":0") for address in addresses)
    await first.stop(0)
    await second.stop(0)


async def test_an_address_in_use_is_named() -> None:
    first = _node()
    address = await first.start()
    with pytest.raises(FailedPreconditionError, match="already in use") as caught:
        await _node(address).start()
    assert address in str(caught.value)
    await first.stop(0)


async def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(FailedPreconditionError, match=r"cannot listen on 192\.0\.2\.1:5"):
        await _node("192.0.2.1:5").start()


async def test_answers_get_their_grace() -> None:
    node = _node()
    async with dial(await node.start()) as channel:
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate(generation_pb2.GenerateRequest())
        await call.read()
        stopping = asyncio.create_task(node.stop(10))
        assert await call.read() is not grpc.aio.EOF
        assert await call.read() is grpc.aio.EOF
        await asyncio.wait_for(stopping, timeout=5)


async def test_stopping_twice_is_harmless() -> None:
    node = _node()
    await node.start()
    await asyncio.gather(node.stop(0), node.stop(0))
    await node.stop(0)


async def test_run_until_signal_returns_when_stopped() -> None:
    node = _node()
    await node.start()
    running = asyncio.create_task(node.run_until_signal(1))
    await asyncio.sleep(0.05)
    await node.stop(0)
    await asyncio.wait_for(running, timeout=5)


async def test_a_second_signal_ends_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sleepy, "pause_s", 30)
    node = _node()
    async with dial(await node.start()) as channel:
        stub: Any = generation_pb2_grpc.GenerationServiceStub(channel)
        call = stub.Generate(generation_pb2.GenerateRequest())
        await call.read()
        running = asyncio.create_task(node.run_until_signal(30))
        for _ in range(2):
            await asyncio.sleep(0.1)
            assert not running.done()
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(running, timeout=5)
        with pytest.raises(grpc.RpcError):
            await call.read()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_process(number: signal.Signals) -> None:
    script = textwrap.dedent(
        """
        import asyncio
        from anydraft.rpc.logs import set_up_logging
        from anydraft.rpc.server import NodeServer

        async def main():
            node = NodeServer("127.0.0.1:0")
            print(await node.start(), flush=True)
            await node.run_until_signal(grace_s=5)

        set_up_logging("info")
        asyncio.run(main())
        """
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with dial_sync(address) as channel:
            assert check_sync(channel, "", timeout_s=10) is Health.SERVING
        process.send_signal(number)
        _, log = process.communicate(timeout=20)
    assert process.returncode == 0, log
    lines = log.splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == [
        f"{number.name}: stopping",
        "stopped",
    ]
