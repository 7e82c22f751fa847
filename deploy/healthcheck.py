"""A container's health: whether the node inside answers and is ready to generate.

    python healthcheck.py HOST:PORT

Exits with 0 when it is, else with 1 and the reason, which `docker inspect` shows.
"""

from __future__ import annotations

import sys

import grpc

from anydraft.rpc.channel import dial_sync
from anydraft.rpc.health import Health, check_sync
from anydraft.v1.generation_pb2 import DESCRIPTOR

_SERVICE = DESCRIPTOR.services_by_name["GenerationService"].full_name
_TIMEOUT_S = 3.0
"""Less than the HEALTHCHECK's own timeout, so that the reason is still told."""


def problem_of(address: str) -> str | None:
    """Why the node at `address` (HOST:PORT) is not healthy; None when it is."""
    with dial_sync(address) as channel:
        try:
            health = check_sync(channel, _SERVICE, timeout_s=_TIMEOUT_S)
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return None if health is Health.SERVING else f"{_SERVICE} is {health.name}"


def main() -> str | None:
    if len(sys.argv) != 2:
        return "usage: healthcheck.py HOST:PORT"
    problem = problem_of(sys.argv[1])
    return f"{sys.argv[1]} is not healthy: {problem}" if problem else None


if __name__ == "__main__":
    sys.exit(main())
