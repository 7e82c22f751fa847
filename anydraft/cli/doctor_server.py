"""A server: reachable, ready, of our revision, and how far away."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import grpc

from anydraft.cli.findings import Finding, fail, ok, warn
from anydraft.client import Client, ServerInfo
from anydraft.errors import AnydraftError
from anydraft.rpc.channel import dial_sync
from anydraft.rpc.health import Health, check_sync
from anydraft.rpc.status import from_rpc_error
from anydraft.v1.generation_pb2 import DESCRIPTOR
from anydraft.version import PROTOCOL_REVISION

_TIMEOUT_S = 5.0
_NUM_PINGS = 5
_GENERATION = DESCRIPTOR.services_by_name["GenerationService"].full_name


def server_findings(address: str) -> Iterator[Finding]:
    """Stops at the first that fails: nothing after it can be asked."""
    try:
        with dial_sync(address) as channel:
            yield _readiness(address, check_sync(channel, _GENERATION, timeout_s=_TIMEOUT_S))
            yield _round_trip(address, channel)
    except grpc.RpcError as exc:
        yield _failed(address, from_rpc_error(exc, address=address))
        return
    except AnydraftError as error:
        yield _failed(address, error)
        return
    try:
        with Client(address, timeout=_TIMEOUT_S) as client:
            yield _identity(address, client.server_info())
    except AnydraftError as error:
        yield _failed(address, error)


def _failed(address: str, error: AnydraftError) -> Finding:
    problem, _, fix = str(error).rpartition(": ")
    return fail(address, problem or str(error), fix if problem else "see the log of that node")


def _readiness(address: str, health: Health) -> Finding:
    match health:
        case Health.SERVING:
            return ok(address, "ready")
        case Health.SERVICE_UNKNOWN:
            return fail(address, f"does not serve {_GENERATION}", "give the address of a node")
        case _:
            fix = "wait until it is loaded, or see the log of that node"
            return warn(address, "reachable, but not ready", fix)


def _round_trip(address: str, channel: grpc.Channel) -> Finding:
    """The connection is there already, so this is the network and gRPC alone."""
    times_ms = []
    for _ in range(_NUM_PINGS):
        started_at_s = time.perf_counter()
        check_sync(channel, "", timeout_s=_TIMEOUT_S)
        times_ms.append((time.perf_counter() - started_at_s) * 1000)
    median_ms = statistics.median(times_ms)
    return ok(address, f"round trip {median_ms:.1f} ms (best {min(times_ms):.1f} ms)")


def _identity(address: str, info: ServerInfo) -> Finding:
    facts = [f"{info.role} node", f"anydraft {info.version}", info.model, info.engine]
    if info.context_tokens is not None:
        facts.append(f"{info.context_tokens} tokens of context")
    if info.verify_address is not None:
        facts.append(f"verified by {info.verify_address}")
    detail = ", ".join(fact for fact in facts if fact)
    if info.protocol_revision != PROTOCOL_REVISION:
        return fail(
            address,
            f"{detail}; protocol revision {info.protocol_revision}, not {PROTOCOL_REVISION}",
            "install the same version of anydraft on both sides",
        )
    return ok(address, detail)
