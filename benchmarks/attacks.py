"""One hostile client, as a process of its own: `attacks NAME HOST:PORT`.

Says "ready" once its message is made, attacks when it reads a line, and then says how that ended,
so that making the message is no part of what is measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator

import grpc

from anydraft.rpc.channel import dial_sync
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.verification_pb2 import Draft, DraftPiece, Open, VerifyRequest, VerifyResponse
from anydraft.version import PROTOCOL_REVISION
from benchmarks._common import describe_error, request, spec

VERIFY = "/anydraft.v1.VerificationService/Verify"
_NEW_TOKENS = 48
_NUM_BIASES = 49_000
_NUM_PIECES = 2_000_000
_NUM_MESSAGES = 600_000
_PROMPT_BYTES = 4_000_000
_STREAM_NEW_TOKENS = 600
"""So that the session is there for as long as drafts come."""
_TIMEOUT_S = 60.0
_STREAM_TIMEOUT_S = 20.0

Attack = Callable[[grpc.Channel], Callable[[], Iterable[object]]]
"""Makes the message; what it returns starts the call."""


def _prompt(text: str) -> Attack:
    def prepare(channel: grpc.Channel) -> Callable[[], Iterable[object]]:
        message = request(text, _NEW_TOKENS)
        return lambda: GenerationServiceStub(channel).Generate(message, timeout=_TIMEOUT_S)

    return prepare


def _logit_biases(channel: grpc.Channel) -> Callable[[], Iterable[object]]:
    message = request("Hello", _NEW_TOKENS)
    message.spec.sampling.logit_bias.update(dict.fromkeys(range(_NUM_BIASES), 0.5))
    return lambda: GenerationServiceStub(channel).Generate(message, timeout=_TIMEOUT_S)


def _drafts(message: VerifyRequest, count: int) -> Attack:
    """A Verify stream with that many times the same draft, which is encoded once."""

    def prepare(channel: grpc.Channel) -> Callable[[], Iterable[object]]:
        opening = Open(protocol_revision=PROTOCOL_REVISION, spec=spec("Hello", _STREAM_NEW_TOKENS))
        first, draft = VerifyRequest(open=opening).SerializeToString(), message.SerializeToString()

        def requests() -> Iterator[bytes]:
            yield first
            for _ in range(count):
                yield draft

        call = channel.stream_stream(
            VERIFY,
            request_serializer=lambda data: data,
            response_deserializer=VerifyResponse.FromString,
        )
        return lambda: call(requests(), timeout=_STREAM_TIMEOUT_S)

    return prepare


def _empty_pieces() -> VerifyRequest:
    piece = DraftPiece()
    return VerifyRequest(draft=Draft(first_piece=1, pieces=[piece] * _NUM_PIECES))


ATTACKS: dict[str, Callable[[], Attack]] = {
    "an honest answer": lambda: _prompt("Hello"),
    "49,000 logit biases": lambda: _logit_biases,
    "2,000,000 empty draft pieces": lambda: _drafts(_empty_pieces(), 1),
    "600,000 draft messages": lambda: _drafts(
        VerifyRequest(draft=Draft(first_piece=1)), _NUM_MESSAGES
    ),
    "a prompt of 4 MB": lambda: _prompt("word " * (_PROMPT_BYTES // 5)),
    "1,000,000 times é": lambda: _prompt("é" * 1_000_000),
}


def main() -> int:
    name, address = sys.argv[1:]
    os.nice(5)  # the node under attack has the cores first
    with dial_sync(address) as channel:
        start = ATTACKS[name]()(channel)
        grpc.channel_ready_future(channel).result(_TIMEOUT_S)
        print("ready", flush=True)  # noqa: T201
        sys.stdin.readline()
        try:
            for _ in start():
                pass
            outcome = "answered"
        except grpc.RpcError as error:
            outcome = describe_error(error)
    print(outcome, flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
