"""transformers' `generate`, alone and with its own assisted generation, as arms of a run."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol

from anydraft.bench.arms import PEER_ALONE, PEER_ASSISTED, Answer
from anydraft.bench.plan import Pair
from anydraft.bench.tasks import Task
from anydraft.cli.nodes import NodeProcess
from anydraft.errors import InternalError

_READY_TIMEOUT_S = 1800.0
_LIMIT_BYTES = 2**24


class Pausable(Protocol):
    """What `NodeProcess` can do to a process."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class PeerArm:
    """See `anydraft.bench.arms.Arm`. One question at a time; between two, its process is paused:
    threads that wait actively for more would take time from the other arms."""

    def __init__(self, name: str, address: str, process: Pausable, *, assisted: bool) -> None:
        """`process`, paused, listens at `address`."""
        self.name = name
        self._process = process
        self._host, _, self._port = address.rpartition(":")
        self._assisted = assisted

    async def ask(self, task: Task) -> Answer:
        with _resumed(self._process):
            return await self._ask(task)

    async def close(self) -> None:
        """Holds nothing between questions."""

    async def _ask(self, task: Task) -> Answer:
        reader, writer = await asyncio.open_connection(
            self._host, int(self._port), limit=_LIMIT_BYTES
        )
        asked = {
            "prompt": task.prompt,
            "max_new_tokens": task.max_new_tokens,
            "assisted": self._assisted,
        }
        began_at_s = time.monotonic()
        try:
            writer.write(json.dumps(asked).encode() + b"\n")
            line = await reader.readline()
        finally:
            writer.close()
        if not line:
            raise InternalError(
                "transformers failed on a prompt: see what it printed, or drop --peers",
                reason="PEER_FAILED",
            )
        answer = json.loads(line)
        arrivals = tuple((began_at_s + at_s, count) for at_s, count in answer["arrivals"])
        return Answer(tuple(answer["ids"]), began_at_s, arrivals, None)


@contextmanager
def _resumed(process: Pausable) -> Iterator[None]:
    process.resume()
    try:
        yield
    finally:
        _pause(process)


def _pause(process: Pausable) -> None:
    # Elsewhere it would outlive a run that is killed, see `anydraft.bench.peer`.
    if sys.platform == "linux":
        process.pause()


def peer_arms(pair: Pair, stack: ExitStack) -> Sequence[PeerArm]:
    """Starts the process that both arms ask; it ends with `stack`."""
    args = ["--target", pair.target, "--assistant", pair.assistant, "--dtype", pair.dtype]
    if pair.target_threads is not None:
        args += ["--threads", str(pair.target_threads)]
    process = NodeProcess("anydraft.bench.peer", args, cores=pair.target_cores)
    address = stack.enter_context(process).wait_ready(_READY_TIMEOUT_S)
    _pause(process)
    return [
        PeerArm(PEER_ALONE, address, process, assisted=False),
        PeerArm(PEER_ASSISTED, address, process, assisted=True),
    ]
