"""Does a stream survive that nothing is said on for a long time?

A verifier that opens the answer and then keeps silent, on a server with this project's own options:
asked by the SDK directly, and by the SDK through a real draft node, at once.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc.aio

from anydraft import AsyncClient
from anydraft.errors import AnydraftError
from anydraft.rpc.server import NodeServer
from anydraft.v1 import generation_pb2 as generation
from anydraft.v1 import result_pb2 as result
from anydraft.v1 import server_pb2 as server
from anydraft.v1 import verification_pb2 as verification
from anydraft.v1.generation_pb2_grpc import (
    GenerationServiceServicer,
    add_GenerationServiceServicer_to_server,
)
from anydraft.v1.server_pb2_grpc import ServerServiceServicer, add_ServerServiceServicer_to_server
from anydraft.v1.verification_pb2_grpc import (
    VerificationServiceServicer,
    add_VerificationServiceServicer_to_server,
)
from anydraft.version import PROTOCOL_REVISION, VERSION
from benchmarks._common import READY_TIMEOUT_S, BenchmarkNode, Findings, parser, run

SILENCE_S = 400.0
SHORT_SILENCE_S = 180.0
"""A peer that refuses pings has ended the connection after 90 to 150 s: less shows nothing."""

_SERVICES = ("VerificationService", "GenerationService", "ServerService")

Context = grpc.aio.ServicerContext[object, object]


class SilentNode(VerificationServiceServicer, GenerationServiceServicer, ServerServiceServicer):
    """Opens every answer at once, ends it `silence_s` later."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s

    async def Verify(  # noqa: N802
        self, request_iterator: AsyncIterator[verification.VerifyRequest], context: Context
    ) -> AsyncIterator[verification.VerifyResponse]:
        await anext(aiter(request_iterator))
        yield verification.VerifyResponse(opened=_opened())
        await asyncio.sleep(self._silence_s)
        yield verification.VerifyResponse(verdict=verification.Verdict(text="done", token_ids=[1]))
        yield verification.VerifyResponse(finished=_finished())

    async def Generate(  # noqa: N802
        self, request: generation.GenerateRequest, context: Context
    ) -> AsyncIterator[generation.GenerateResponse]:
        yield generation.GenerateResponse(opened=_opened())
        await asyncio.sleep(self._silence_s)
        delta = generation.TextDelta(text="done", token_ids=[1])
        yield generation.GenerateResponse(delta=delta)
        yield generation.GenerateResponse(finished=_finished())

    async def GetServerInfo(  # noqa: N802
        self, request: server.GetServerInfoRequest, context: Context
    ) -> server.GetServerInfoResponse:
        return server.GetServerInfoResponse(
            info=server.ServerInfo(
                role=server.NODE_ROLE_VERIFY,
                model="silent",
                version=VERSION,
                protocol_revision=PROTOCOL_REVISION,
                engine="scripted",
                context_tokens=8192,
                vocabulary_size=8,
            )
        )


def _opened() -> result.Opened:
    return result.Opened(
        session_id="silent", model="silent", prompt_tokens=3, max_new_tokens=1, credit_pieces=8
    )


def _finished() -> result.Finished:
    stats = result.GenerationStats(prompt_tokens=3, completion_tokens=1, rounds=1)
    return result.Finished(reason=result.FINISH_REASON_EOS, stats=stats)


@asynccontextmanager
async def silent_node(silence_s: float) -> AsyncIterator[str]:
    """Serves on loopback with the options of our own nodes; yields its address."""
    node = NodeServer("127.0.0.1:0")
    silent = SilentNode(silence_s)
    add_VerificationServiceServicer_to_server(silent, node.server)
    add_GenerationServiceServicer_to_server(silent, node.server)
    add_ServerServiceServicer_to_server(silent, node.server)
    address = await node.start()
    try:
        await node.set_ready([f"anydraft.v1.{name}" for name in _SERVICES])
        yield address
    finally:
        await node.stop(0)


async def ask(address: str) -> Findings:
    """Whether the answer of the silent node arrives, and when the call ended."""
    started = time.monotonic()
    error = None
    async with AsyncClient(address) as client:
        try:
            answer = await client.generate("What is a trie?").result()
        except AnydraftError as failure:
            error = f"{type(failure).__name__}: {failure}"
        else:
            error = None if answer.text == "done" else f"the text is {answer.text!r}"
    ended_after_s = round(time.monotonic() - started, 1)
    return {"survived": error is None, "ended_after_s": ended_after_s, "error": error}


async def _measure(silence_s: float) -> Findings:
    async with silent_node(silence_s) as address:
        arguments = ["--engine", "lookup", "--verify", address, "--listen", "127.0.0.1:0"]
        with BenchmarkNode("draft_node", arguments) as draft:
            draft_address = await asyncio.to_thread(draft.wait_ready, READY_TIMEOUT_S)
            direct, both_hops = await asyncio.gather(ask(address), ask(draft_address))
    return {"silence_s": silence_s, "direct": direct, "both_hops": both_hops}


def measure(short: bool, silence_s: float | None = None) -> Findings:
    return asyncio.run(_measure(silence_s or (SHORT_SILENCE_S if short else SILENCE_S)))


def main(argv: Sequence[str] | None = None) -> int:
    p = parser(__doc__)
    p.add_argument("--seconds", type=float, help=f"of silence (default: {SILENCE_S:.0f})")
    args = p.parse_args(argv)
    return run(args, lambda short: measure(short, args.seconds))


if __name__ == "__main__":
    sys.exit(main())
