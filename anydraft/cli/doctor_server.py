"""A server: reachable, of our revision, how far away, ready, and whether it answers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import grpc

from anydraft.cli.findings import Finding, fail, ok, problem_and_fix, warn
from anydraft.client import Client, ServerInfo
from anydraft.errors import AnydraftError, DeadlineExceededError
from anydraft.rpc.channel import dial_sync
from anydraft.rpc.health import Health, check_sync
from anydraft.rpc.status import from_rpc_error
from anydraft.v1.generation_pb2 import DESCRIPTOR
from anydraft.version import PROTOCOL_REVISION

_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 15.0
_NUM_PINGS = 5
_PASSES = ("ASSISTANT_LOADING", "VERIFY_NODE_NOT_READY", "SHUTTING_DOWN")
"""Reasons that go away by themselves."""
_GENERATION = DESCRIPTOR.services_by_name["GenerationService"].full_name


def server_findings(address: str) -> Iterator[Finding]:
    """Stops at the first that fails: nothing after it can be asked."""
    try:
        with dial_sync(address) as channel, Client(address) as client:
            health = check_sync(channel, _GENERATION, timeout_s=_TIMEOUT_S)
            if health is Health.SERVICE_UNKNOWN:
                problem = f"does not serve {_GENERATION}"
                yield fail(address, problem, "give the address of a draft node or a verify node")
                return
            info = client.server_info(timeout=_TIMEOUT_S)
            yield (identity := _identity(address, info))
            yield _round_trip(address, channel)
            if identity.state == "ok":
                yield _readiness(address, health, info, client)
    except grpc.RpcError as exc:
        yield _failed(address, from_rpc_error(exc, address=address))
    except AnydraftError as error:
        yield _failed(address, error)


def _failed(address: str, error: AnydraftError, *, lead: str = "") -> Finding:
    problem, fix = problem_and_fix(error)
    return fail(address, f"{lead}{problem}", fix)


def _readiness(address: str, health: Health, info: ServerInfo, client: Client) -> Finding:
    """Asks for one token: what a client would be told, a node that is not ready says as well."""
    started_at_s = time.perf_counter()
    try:
        client.generate("Hi", max_new_tokens=1, timeout=_ANSWER_TIMEOUT_S).result()
    except DeadlineExceededError:
        problem = f"gave no token within {_ANSWER_TIMEOUT_S:g} s"
        return warn(address, problem, "it is busy or loading: ask again, or see its log")
    except AnydraftError as error:
        if error.reason == "NO_VERIFY_NODE":
            return ok(address, "drafts for verify nodes that dial it, and answers nobody itself")
        if health is Health.SERVING:
            return _failed(address, error, lead="says that it is ready, but does not answer: ")
        if error.reason in _PASSES or info.role != "draft":
            problem, fix = problem_and_fix(error)
            return warn(address, f"up, but not ready yet: {problem}", fix)
        return _failed(address, error, lead="up, but not ready: ")
    if health is not Health.SERVING:
        return warn(address, "answers, but says that it is not ready", "ask again in a while")
    elapsed_ms = (time.perf_counter() - started_at_s) * 1000
    return ok(address, f"ready: one token in {elapsed_ms:.0f} ms")


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
    model = info.model or "target not known yet"
    facts = [f"{info.role} node", f"anydraft {info.version}", model, info.engine]
    if info.assistant is not None:
        facts.append(f"drafted by {info.assistant}")
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
