"""The SDK for threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self, Unpack, cast

import grpc

from anydraft.client._answer import GenerationResult, TextEvent
from anydraft.client._assembly import AnswerAssembler
from anydraft.client._deadline import Deadline, require_timeout
from anydraft.client._options import GenerateOptions, Messages, build_request
from anydraft.client._resume import ResumePoint, Retries, Session
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
from anydraft.v1.generation_pb2 import GenerateRequest, GenerateResponse
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
        resume: ResumePoint | None = None,
        retries: int = 0,
        **options: Unpack[GenerateOptions],
    ) -> Stream:
        """Starts an answer to a raw `prompt` or to chat `messages` ({"role": ..., "content": ...}).
        A content is text, or parts ({"type": "text", "text": ...}), which are joined.

        `timeout` limits the whole answer. See `GenerateOptions` for the other arguments; they are
        checked before anything is sent (InvalidRequestError).

        `resume`: goes on with an answer of the same arguments, from `resume_point` of its stream;
        the result is the whole one. `retries`: how often a node that is away or full is asked
        again, for what is left of the answer.
        """
        request = build_request(prompt, messages, options)
        deadline = self._deadline(timeout)
        assembler = AnswerAssembler(begun=resume)

        def start() -> Iterator[GenerateResponse]:
            point = assembler.resume_point
            return self._start(request if point is None else point.apply(request), deadline)

        return Stream(start, assembler, self.address, Retries(retries))

    def resume(self, session: Session, *, timeout: float | None = None) -> Stream:
        """An answer that was begun on this node, from beginning to end. A stream that still
        reads it ends. NotFoundError where the node has forgotten it."""
        assembler, deadline = AnswerAssembler(), self._deadline(timeout)

        def start() -> Iterator[GenerateResponse]:
            return self._start(session.request(), deadline)

        return Stream(start, assembler, self.address, Retries(0))

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

    def _start(self, request: GenerateRequest, deadline: Deadline) -> Iterator[GenerateResponse]:
        if not self._speaks_our_revision:
            require_same_revision(self._fetch_info(deadline), self.address)
            self._speaks_our_revision = True
        stub = GenerationServiceStub(self._open_channel())
        return stub.Generate(request, timeout=deadline.remaining_s())

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
        self,
        start: Callable[[], Iterator[GenerateResponse]],
        assembler: AnswerAssembler,
        address: str,
        retries: Retries,
    ) -> None:
        """`start` asks for what is left of the answer. Raises what that raises."""
        self._start = start
        self._retries = retries
        self._assembler = assembler
        self._call: Any = self._started()
        self._address = address
        self._is_over = False
        self._error: AnydraftError | None = None

    def __next__(self) -> TextEvent:
        while True:
            event = self._assembler.add(self._read())
            if event is not None:
                return event

    @property
    def session(self) -> Session | None:
        """With which `resume` of a client gives this answer from its beginning; None before it has
        begun, and where the node keeps none."""
        return self._assembler.session

    @property
    def resume_point(self) -> ResumePoint | None:
        """From which `generate(..., resume=...)` goes on, however this stream ends; None while
        nothing is known of the answer."""
        return self._assembler.resume_point

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
        while not self._is_over:
            try:
                return cast(GenerateResponse, next(self._call))
            except StopIteration:
                self._is_over = True
                raise
            except grpc.RpcError as exc:
                if self._is_over:  # another thread closed the stream
                    raise StopIteration from None
                error = from_rpc_error(exc, address=self._address)
                if not self._is_tried_again(error):
                    self._error = error
                    raise error from exc
            try:
                self._call = self._started()
            except AnydraftError as error:
                self._error = error
                raise
        raise StopIteration

    def _started(self) -> Iterator[GenerateResponse]:
        """A call for what is left; asks again as `retries` allow."""
        while True:
            try:
                return self._start()
            except AnydraftError as error:
                if not self._is_tried_again(error):
                    raise

    def _is_tried_again(self, error: AnydraftError) -> bool:
        pause_s = self._retries.pause_s(error, may_go_on=self._assembler.may_go_on)
        if pause_s is not None:
            time.sleep(pause_s)
        return pause_s is not None
