"""A container's health: whether the node inside is ready to generate, or to draft where it does no
more.

    python healthcheck.py HOST:PORT

Exits with 0 when it is, else with 1 and the reason, which `docker inspect` shows.
"""

from __future__ import annotations

import sys

import grpc

from anydraft.rpc.channel import dial_sync
from anydraft.rpc.health import Health, check_sync
from anydraft.v1 import drafting_pb2, generation_pb2
from anydraft.v1.server_pb2 import NODE_ROLE_DRAFT, GetServerInfoRequest
from anydraft.v1.server_pb2_grpc import ServerServiceStub

_GENERATION = generation_pb2.DESCRIPTOR.services_by_name["GenerationService"].full_name
_DRAFTING = drafting_pb2.DESCRIPTOR.services_by_name["DraftingService"].full_name
_TIMEOUT_S = 3.0
"""Less than the HEALTHCHECK's own timeout, so that the reason is still told."""


def problem_of(address: str) -> str | None:
    """Why the node at `address` (HOST:PORT) is not healthy; None when it is."""
    with dial_sync(address) as channel:
        try:
            service = _GENERATION
            health = check_sync(channel, service, timeout_s=_TIMEOUT_S)
            if health is not Health.SERVING and _only_drafts(channel):
                service = _DRAFTING
                health = check_sync(channel, service, timeout_s=_TIMEOUT_S)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return None if health is Health.SERVING else f"{service} is {health.name}"


def _only_drafts(channel: grpc.Channel) -> bool:
    """Whether it is a draft node without a verify node."""
    response = ServerServiceStub(channel).GetServerInfo(GetServerInfoRequest(), timeout=_TIMEOUT_S)
    info = response.info
    return bool(info.role == NODE_ROLE_DRAFT and not info.HasField("verify_address"))


def main() -> str | None:
    if len(sys.argv) != 2:
        return "usage: healthcheck.py HOST:PORT"
    problem = problem_of(sys.argv[1])
    return f"{sys.argv[1]} is not healthy: {problem}" if problem else None


if __name__ == "__main__":
    sys.exit(main())
