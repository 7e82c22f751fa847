"""One hostile client, as a process of its own: `attacks NAME HOST:PORT`.

Says "ready" once its message is made, attacks when it reads a line, and then says how that ended,
so that making the message is no part of what is measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from random import Random

import grpc

from anydraft.rpc.channel import dial_sync
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.verification_pb2 import (
    Draft,
    DraftPiece,
    Open,
    Verdict,
    VerifyRequest,
    VerifyResponse,
)
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

_PIECES_BEYOND = 1024
"""Of one draft beyond the credit; eight times what a session holds."""
_PIECE_BYTES = 32
"""Of each piece of a tree: 128 of them are all the text that a session holds."""

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


def _stream(write: Callable[[SimpleQueue[Verdict | None]], Iterator[bytes]]) -> Attack:
    """A Verify stream. `write` hears all verdicts, then None, and makes the drafts, encoded."""

    def prepare(channel: grpc.Channel) -> Callable[[], Iterable[object]]:
        opening = Open(protocol_revision=PROTOCOL_REVISION, spec=spec("Hello", _STREAM_NEW_TOKENS))
        verdicts: SimpleQueue[Verdict | None] = SimpleQueue()

        def requests() -> Iterator[bytes]:
            yield VerifyRequest(open=opening).SerializeToString()
            yield from write(verdicts)

        call = channel.stream_stream(
            VERIFY,
            request_serializer=lambda data: data,
            response_deserializer=VerifyResponse.FromString,
        )

        def attack() -> Iterator[object]:
            try:
                for response in call(requests(), timeout=_STREAM_TIMEOUT_S):
                    if response.WhichOneof("message") == "verdict":
                        verdicts.put(response.verdict)
                    yield response
            finally:
                verdicts.put(None)

        return attack

    return prepare


def _drafts(message: VerifyRequest, count: int) -> Attack:
    """That many times the same draft, which is encoded once."""
    encoded = message.SerializeToString()
    return _stream(lambda verdicts: (encoded for _ in range(count)))


class Comb:
    """Trees as deep and as broad as their number of pieces allows: a chain, and beside each piece
    of it another one. The ids go on from tree to tree. No text is there twice, so that nothing
    that was encoded can be used again, and no answer says it, so that every verdict drops it all.
    """

    def __init__(self) -> None:
        self._random = Random(7)
        self._next_id = 1
        self._below = 0

    def restart(self) -> None:
        """The next piece hangs at the committed text."""
        self._below = 0

    def grow(self, base_bytes: int, count: int) -> Draft:
        """The next `count` pieces, an even number."""
        first = self._next_id
        pieces = []
        for _ in range(count // 2):
            pieces += [self._piece(), self._piece()]
            self._below = self._next_id
            self._next_id += 2
        return Draft(first_piece=first, base_bytes=base_bytes, pieces=pieces)

    def _piece(self) -> DraftPiece:
        text = b"\x7f" + self._random.randbytes((_PIECE_BYTES - 2) // 2).hex().encode()
        return DraftPiece(text=text, logprob=0.0, parent=self._below)


def within_credit(verdicts: SimpleQueue[Verdict | None]) -> Iterator[bytes]:
    """After each verdict all that its credit allows, two pieces a message, since whatever comes
    may be aligned anew. Nothing that the protocol forbids."""
    comb = Comb()
    while (verdict := verdicts.get()) is not None:
        if not verdict.text:
            continue  # what was sent before is not decided
        comb.restart()
        base_bytes = verdict.base_bytes + len(verdict.text.encode())
        for _ in range(verdict.credit_pieces // 2):
            yield VerifyRequest(draft=comb.grow(base_bytes, 2)).SerializeToString()


def beyond_credit(verdicts: SimpleQueue[Verdict | None]) -> Iterator[bytes]:
    """Large trees at the newest committed text, without a pause, whatever the credit is."""
    comb, base_bytes = Comb(), 0
    while True:
        while not verdicts.empty():
            if (verdict := verdicts.get()) is None:
                return
            base_bytes = verdict.base_bytes + len(verdict.text.encode())
        comb.restart()
        yield VerifyRequest(draft=comb.grow(base_bytes, _PIECES_BEYOND)).SerializeToString()


def _empty_pieces() -> VerifyRequest:
    piece = DraftPiece()
    return VerifyRequest(draft=Draft(first_piece=1, pieces=[piece] * _NUM_PIECES))


ATTACKS: dict[str, Callable[[], Attack]] = {
    "an honest answer": lambda: _prompt("Hello"),
    "a stream without drafts": lambda: _stream(lambda verdicts: iter(())),
    "49,000 logit biases": lambda: _logit_biases,
    "2,000,000 empty draft pieces": lambda: _drafts(_empty_pieces(), 1),
    "600,000 drafts without pieces": lambda: _drafts(
        VerifyRequest(draft=Draft(first_piece=1)), _NUM_MESSAGES
    ),
    "trees within the credit": lambda: _stream(within_credit),
    "trees far beyond the credit": lambda: _stream(beyond_credit),
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
