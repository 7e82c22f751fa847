"""A node on loopback whose answers a test scripts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_status import rpc_status

from anydraft.errors import AnydraftError
from anydraft.rpc.channel import server_options
from anydraft.rpc.status import to_status
from anydraft.v1 import generation_pb2, generation_pb2_grpc, result_pb2, server_pb2, server_pb2_grpc
from anydraft.version import PROTOCOL_REVISION

GENERATION = "anydraft.v1.GenerationService"
SEED = 2**64 - 1

Request = generation_pb2.GenerateRequest
Response = generation_pb2.GenerateResponse
Script = Callable[[Request, grpc.ServicerContext], Iterator[Response]]


def opened() -> Response:
    return Response(
        opened=result_pb2.Opened(session_id="s1", model="big", seed=SEED, prompt_tokens=3)
    )


def delta(text: str, *token_ids: int, **fields: Any) -> Response:
    return Response(delta=generation_pb2.TextDelta(text=text, token_ids=token_ids, **fields))


def finished(reason: int = result_pb2.FINISH_REASON_EOS, stop: str = "") -> Response:
    stats = result_pb2.GenerationStats(
        prompt_tokens=3,
        completion_tokens=4,
        rounds=2,
        draft_rounds=1,
        drafted_tokens=4,
        accepted_tokens=3,
        stale_pieces=1,
        text_bytes=12,
        verify_ms=2.5,
        sent_bytes=50,
    )
    return Response(finished=result_pb2.Finished(reason=reason, stop=stop, stats=stats))


HELLO = [opened(), delta("Hel", 1, 2, drafted_bytes=2), delta("lo wörld", 3, 4), finished()]


class FakeNode(
    generation_pb2_grpc.GenerationServiceServicer, server_pb2_grpc.ServerServiceServicer
):
    """Says HELLO until told otherwise. `ended` is set once a call is over, however it ended."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.ended = threading.Event()
        self.num_info_calls = 0
        self.info = server_pb2.ServerInfo(
            role=server_pb2.NODE_ROLE_VERIFY,
            model="big",
            version="9.9",
            protocol_revision=PROTOCOL_REVISION,
            engine="scripted",
            context_tokens=128,
        )
        self._script: Script = lambda request, context: iter(HELLO)
        self._health = health.HealthServicer()
        self._server = grpc.server(ThreadPoolExecutor(8), options=server_options())
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(self, self._server)
        server_pb2_grpc.add_ServerServiceServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.set_ready(True)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def answer(self, *responses: Response) -> None:
        self._script = lambda request, context: iter(responses)

    def answer_with(self, script: Script) -> None:
        self._script = script

    def fail(self, error: AnydraftError, *before: Response) -> None:
        def script(request: Request, context: grpc.ServicerContext) -> Iterator[Response]:
            yield from before
            context.abort_with_status(rpc_status.to_status(to_status(error)))

        self._script = script

    def hang(self, *before: Response) -> None:
        """Sends `before`, and then nothing until the caller leaves."""

        def script(request: Request, context: grpc.ServicerContext) -> Iterator[Response]:
            yield from before
            self.ended.wait(30)

        self._script = script

    def set_ready(self, is_ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        self._health.set(GENERATION, status.SERVING if is_ready else status.NOT_SERVING)

    def stop(self) -> None:
        self._server.stop(0).wait()
        self.ended.set()

    def Generate(self, request: Request, context: grpc.ServicerContext) -> Iterator[Response]:  # noqa: N802
        self.requests.append(request)
        self.ended.clear()
        context.add_callback(self.ended.set)
        return self._script(request, context)

    def GetServerInfo(  # noqa: N802
        self, request: server_pb2.GetServerInfoRequest, context: grpc.ServicerContext
    ) -> server_pb2.GetServerInfoResponse:
        self.num_info_calls += 1
        return server_pb2.GetServerInfoResponse(info=self.info)
