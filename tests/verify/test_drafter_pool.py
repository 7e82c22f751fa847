"""Who of a pool is next, against draft nodes on loopback that hold no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from types import SimpleNamespace

import pytest

from anydraft.errors import InvalidRequestError
from anydraft.rpc.address import Address
from anydraft.rpc.channel import dial
from anydraft.rpc.server import NodeServer
from anydraft.v1.server_pb2 import NODE_ROLE_DRAFT, ServerInfo
from anydraft.v1.server_pb2_grpc import add_ServerServiceServicer_to_server
from draft_node.drafters.lookup import LookupDrafter
from draft_node.lifecycle import DraftNode
from draft_node.load import LoadedDrafter
from tests.draft.played import DescribedNode, described
from verify_node import drafter_pool, pool_member
from verify_node.drafter_pool import DrafterPool
from verify_node.pool_member import PoolMember

DRAFTING = "anydraft.v1.DraftingService"


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafter_pool, "_RESOLVE_EVERY_S", 0.02)
    monkeypatch.setattr(pool_member, "_LOAD_EVERY_S", 0.02)
    monkeypatch.setattr(pool_member, "_LONGEST_PAUSE_S", 0.4)


@asynccontextmanager
async def drafter(max_sessions: int = 4, listen: str = "127.0.0.1:0") -> AsyncIterator[str]:
    node = DraftNode(None, listen, max_sessions=max_sessions)
    address = await node.start()
    await node.serve(LoadedDrafter(LookupDrafter(), "lookup", "test"))
    try:
        yield address
    finally:
        await node.stop()


@asynccontextmanager
async def running(*addresses: str) -> AsyncIterator[DrafterPool]:
    pool = DrafterPool(addresses)
    task = asyncio.create_task(pool.run())
    try:
        yield pool
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pool.close()


async def take(pool: DrafterPool) -> PoolMember:
    return await asyncio.wait_for(pool.take(), 10)


async def nobody_is_free(pool: DrafterPool) -> bool:
    try:
        member = await asyncio.wait_for(pool.take(), 0.3)
    except TimeoutError:
        return True
    member.is_done(has_failed=False)
    return False


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that")


def test_an_address_that_is_none() -> None:
    with pytest.raises(InvalidRequestError):
        DrafterPool(["nowhere"])


async def test_sessions_go_where_the_most_room_is() -> None:
    async with drafter(2) as small, drafter(6) as large, running(small, large) as pool:
        await until(lambda: sum(m.is_free for m in pool._members.values()) == 2)
        taken = [await take(pool) for _ in range(8)]
        assert sorted(member.address for member in taken) == sorted([small] * 2 + [large] * 6)
        assert await nobody_is_free(pool)
        # Whoever waits goes on as soon as somebody is done.
        waiting = asyncio.create_task(pool.take())
        await asyncio.sleep(0.05)
        taken[3].is_done(has_failed=False)
        assert await asyncio.wait_for(waiting, 10) is taken[3]


async def test_what_others_have_it_do_counts() -> None:
    info = described(role=NODE_ROLE_DRAFT, num_drafting_sessions=3, max_drafting_sessions=4)
    async with described_node(info) as busy, drafter(4) as free, running(busy, free) as pool:
        await until(lambda: sum(m.is_free for m in pool._members.values()) == 2)
        assert [(await take(pool)).address for _ in range(3)] == [free] * 3


async def test_a_member_that_fails_rests_for_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(pool_member, "time", SimpleNamespace(monotonic=lambda: now[0]))
    async with drafter() as address, running(address) as pool:
        member = await take(pool)
        rests = []
        for _ in range(4):
            member.is_done(has_failed=True)
            rests.append(member.rest_s())
            assert not member.is_free
            now[0] += rests[-1]
            assert await take(pool) is member
        assert rests == pytest.approx([0.1, 0.2, 0.4, 0.4])
        member.is_done(has_failed=False)
        assert member.is_free
        member.takes()
        member.is_done(has_failed=True)
        assert member.rest_s() == pytest.approx(rests[0])


async def test_a_member_that_goes_and_comes_back() -> None:
    async with AsyncExitStack() as stack:
        node = DraftNode(None, "127.0.0.1:0")
        address = await node.start()
        pool = await stack.enter_async_context(running(address))
        # It listens, and has nothing to draft with yet.
        assert await nobody_is_free(pool)
        await node.serve(LoadedDrafter(LookupDrafter(), "lookup", "test"))
        (await take(pool)).is_done(has_failed=False)
        await node.stop()
        await until(lambda: not pool._members[address].is_free)
        assert await nobody_is_free(pool)
        await stack.enter_async_context(drafter(listen=address))
        assert (await take(pool)).address == address


@asynccontextmanager
async def described_node(info: ServerInfo) -> AsyncIterator[str]:
    node = NodeServer("127.0.0.1:0")
    add_ServerServiceServicer_to_server(DescribedNode(info), node.server)
    address = await node.start()
    await node.set_ready([DRAFTING])
    try:
        yield address
    finally:
        await node.stop(0)


@pytest.mark.parametrize(
    "info", [described(), described(role=NODE_ROLE_DRAFT, protocol_revision=99)]
)
async def test_other_nodes_are_no_drafters(info: ServerInfo) -> None:
    async with described_node(info) as address, running(address) as pool:
        assert await nobody_is_free(pool)


async def test_a_name_stands_for_all_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are now; whoever is no longer listed finishes its sessions, and a name that cannot
    be looked up stands for what it stood for."""
    listed: set[str] | None = None

    async def resolve(target: Address) -> set[str] | None:
        assert target == Address("drafters.example", 50061)
        return listed

    monkeypatch.setattr(drafter_pool, "_resolve", resolve)
    async with drafter(1) as one, drafter(1) as two, running("drafters.example:50061") as pool:
        assert await nobody_is_free(pool)
        listed = {one, two}
        first, second = await take(pool), await take(pool)
        assert {first.address, second.address} == listed
        listed = {second.address}
        await until(lambda: first.address not in pool._members)
        listed = None
        async with dial(first.address) as channel:
            await asyncio.wait_for(channel.channel_ready(), 10)
        first.is_done(has_failed=False)
        second.is_done(has_failed=False)
        assert (await take(pool)).address == second.address
        assert await nobody_is_free(pool)


async def test_a_name_is_looked_up() -> None:
    async with drafter() as address, running(f"localhost:{address.rpartition(':')[2]}") as pool:
        assert (await take(pool)).address == address
    found = await drafter_pool._resolve(Address("no-such-host.invalid", 1))
    assert found is None
