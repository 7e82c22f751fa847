"""The SDK for threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self, Unpack, cast

import grpc

from anydraft.client._answer import GenerationResult, TextEvent
from anydraft.client._assembly import AnswerAssembler
from anydraft.client._deadline import Deadline, require_timeout
from anydraft.client._options import GenerateOptions, Messages, build_request
from anydraft.client._server import (
    GENERATION_SERVICE,
    READY_POLL_S,
    ReadinessWait,
    ServerInfo,
    client_closed,
    decode_info,
    require_same_revision,
)
from anydraft.errors import AnydraftError
from anydraft.rpc.address import parse_target
from anydraft.rpc.channel import dial_sync
from anydraft.rpc.health import Health, check_sync
from anydraft.rpc.status import from_rpc_error
from anydraft.v1.generation_pb2 import GenerateResponse
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.server_pb2 import GetServerInfoRequest
from anydraft.v1.server_pb2_grpc import ServerServiceStub


class Client:
    """Asks one node for text. Safe to share between threads; connects on first use.

        with anydraft.Client("127.0.0.1:50051") as client:
            for event in client.generate("Once upon a time"):
                print(event.text, end="", flush=True)

    `timeout` is the default limit of every call in seconds; None is no limit. Errors are those of
    `anydraft.errors`.
    """

    def __init__(self, address: str, *, timeout: float | None = None) -> None:
        self.address = str(parse_target(address))
        self._timeout_s = require_timeout(timeout)
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._is_closed = False
        self._speaks_our_revision = False

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: Messages | None = None,
        timeout: float | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """Starts an answer to a raw `prompt` or to chat `messages` ({"role": ..., "content": ...}).
        A content is text, or parts ({"type": "text", "text": ...}), which are joined.

        `timeout` limits the whole answer. See `GenerateOptions` for the other arguments; they are
        checked before anything is sent (InvalidRequestError).
        """
        request = build_request(prompt, messages, options)
        deadline = self._deadline(timeout)
        assembler = AnswerAssembler()
        if not self._speaks_our_revision:
            require_same_revision(self._fetch_info(deadline), self.address)
            self._speaks_our_revision = True
        stub = GenerationServiceStub(self._open_channel())
        call = stub.Generate(request, timeout=deadline.remaining_s())
        return Stream(call, assembler, self.address)

    def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        """What the node says about itself, whatever revision it speaks."""
        return self._fetch_info(self._deadline(timeout))

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Returns once the node answers requests; a node that is not there yet is waited for.

        Raises DeadlineExceededError when `timeout` (in seconds, None for ever) runs out first.
        """
        wait = ReadinessWait(self.address, timeout)
        while not wait.is_ready(self._ask_health(wait.question_timeout_s())):
            time.sleep(READY_POLL_S)

    def close(self) -> None:
        """Ends the connection and every stream on it."""
        with self._lock:
            channel, self._channel = self._channel, None
            self._is_closed = True
        if channel is not None:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<anydraft.Client {self.address}{' closed' if self._is_closed else ''}>"

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout is None else timeout)

    def _open_channel(self) -> grpc.Channel:
        with self._lock:
            if self._is_closed:
                raise client_closed()
            if self._channel is None:
                self._channel = dial_sync(self.address)
            return self._channel

    def _fetch_info(self, deadline: Deadline) -> ServerInfo:
        stub = ServerServiceStub(self._open_channel())
        try:
            response = stub.GetServerInfo(GetServerInfoRequest(), timeout=deadline.remaining_s())
        except grpc.RpcError as exc:
            raise from_rpc_error(exc, address=self.address) from exc
        return decode_info(response.info)

    def _ask_health(self, timeout_s: float) -> Health | AnydraftError:
        try:
            return check_sync(self._open_channel(), GENERATION_SERVICE, timeout_s=timeout_s)
        except grpc.RpcError as exc:
            return from_rpc_error(exc, address=self.address)


class Stream(Iterator[TextEvent]):
    """One answer as it is made: iterate over it, or take its `result()`.

    Closing it, leaving its `with` block, or dropping it cancels an answer that is not finished.
    """

    def __init__(
        self, call: Iterator[GenerateResponse], assembler: AnswerAssembler, address: str
    ) -> None:
        self._call: Any = call
        self._assembler = assembler
        self._address = address
        self._is_over = False
        self._error: AnydraftError | None = None

    def __next__(self) -> TextEvent:
        while True:
            event = self._assembler.add(self._read())
            if event is not None:
                return event

    def result(self) -> GenerationResult:
        """The whole answer, once what is left of it has arrived.

        Raises FailedPreconditionError when the stream was closed before that.
        """
        for _ in self:
            pass
        return self._assembler.result()

    def close(self) -> None:
        """Cancels an answer that is not finished. Closing twice is harmless."""
        self._is_over = True
        self._assembler.abandon()
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> GenerateResponse:
        """The next response. Raises StopIteration after the last, or once the stream is closed."""
        if self._error is not None:
            raise self._error
        if self._is_over:
            raise StopIteration
        try:
            return cast(GenerateResponse, next(self._call))
        except StopIteration:
            self._is_over = True
            raise
        except grpc.RpcError as exc:
            if self._is_over:  # another thread closed the stream
                raise StopIteration from None
            self._error = from_rpc_error(exc, address=self._address)
            raise self._error from exc
