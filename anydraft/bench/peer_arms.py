"""transformers' `generate`, alone and with its own assisted generation, as arms of a run."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack

from anydraft.bench.arms import PEER_ALONE, PEER_ASSISTED, Answer
from anydraft.bench.plan import Pair
from anydraft.bench.tasks import Task
from anydraft.cli.nodes import NodeProcess
from anydraft.errors import InternalError

_READY_TIMEOUT_S = 1800.0
_LIMIT_BYTES = 2**24


class PeerArm:
    """See `anydraft.bench.arms.Arm`. One question at a time."""

    def __init__(self, name: str, address: str, *, assisted: bool) -> None:
        self.name = name
        self._host, _, self._port = address.rpartition(":")
        self._assisted = assisted

    async def ask(self, task: Task) -> Answer:
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

    async def close(self) -> None:
        """Holds nothing between questions."""


def peer_arms(pair: Pair, stack: ExitStack) -> Sequence[PeerArm]:
    """Starts the process that both arms ask; it ends with `stack`."""
    args = ["--target", pair.target, "--assistant", pair.assistant, "--dtype", pair.dtype]
    if pair.target_threads is not None:
        args += ["--threads", str(pair.target_threads)]
    process = NodeProcess("anydraft.bench.peer", args, cores=pair.target_cores)
    address = stack.enter_context(process).wait_ready(_READY_TIMEOUT_S)
    return [
        PeerArm(PEER_ALONE, address, assisted=False),
        PeerArm(PEER_ASSISTED, address, assisted=True),
    ]
