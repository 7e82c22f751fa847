"""The SDK for asyncio: the twin of `_sync`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

import grpc
import grpc.aio

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
from anydraft.rpc.channel import dial
from anydraft.rpc.health import Health, check
from anydraft.rpc.status import from_rpc_error, unreadable_response
from anydraft.v1.generation_pb2 import GenerateRequest, GenerateResponse
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.server_pb2 import GetServerInfoRequest
from anydraft.v1.server_pb2_grpc import ServerServiceStub

if TYPE_CHECKING:
    from anydraft.v1.generation_pb2_grpc import GenerationServiceAsyncStub
    from anydraft.v1.server_pb2_grpc import ServerServiceAsyncStub

    Call = grpc.aio.UnaryStreamCall[GenerateRequest, GenerateResponse]


class AsyncClient:
    """Asks one node for text, from one event loop; connects on first use.

        async with anydraft.AsyncClient("127.0.0.1:50051") as client:
            async for event in client.generate("Once upon a time"):
                print(event.text, end="", flush=True)

    `timeout` is the default limit of every call in seconds; None is no limit. Errors are those of
    `anydraft.errors`.
    """

    def __init__(self, address: str, *, timeout: float | None = None) -> None:
        self.address = str(parse_target(address))
        self._timeout_s = require_timeout(timeout)
        self._channel: grpc.aio.Channel | None = None
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
    ) -> AsyncStream:
        """One answer to a raw `prompt` or to chat `messages` ({"role": ..., "content": ...}).
        A content is text, or parts ({"type": "text", "text": ...}), which are joined.

        It starts, and `timeout` starts, when it is first awaited. See `GenerateOptions` for the
        other arguments; they are checked at once (InvalidRequestError).

        `resume`: goes on with an answer of the same arguments, from `resume_point` of its stream;
        the result is the whole one. `retries`: how often a node that is away or full is asked
        again, for what is left of the answer.
        """
        request = build_request(prompt, messages, options)
        timeout_s = self._timeout_s if timeout is None else require_timeout(timeout)

        deadline: Deadline | None = None

        async def start(point: ResumePoint | None) -> Call:
            nonlocal deadline
            deadline = deadline or Deadline(timeout_s)
            asked = request if point is None else point.apply(request)
            return await self._start(asked, deadline)

        return AsyncStream(start, AnswerAssembler(begun=resume), self.address, Retries(retries))

    def resume(self, session: Session, *, timeout: float | None = None) -> AsyncStream:
        """An answer that was begun on this node, from beginning to end. A stream that still
        reads it ends. NotFoundError where the node has forgotten it."""
        timeout_s = self._timeout_s if timeout is None else require_timeout(timeout)

        async def start(_: ResumePoint | None) -> Call:
            return await self._start(session.request(), Deadline(timeout_s))

        return AsyncStream(start, AnswerAssembler(), self.address, Retries(0))

    async def server_info(self, *, timeout: float | None = None) -> ServerInfo:  # noqa: ASYNC109
        """What the node says about itself, whatever revision it speaks."""
        return await self._fetch_info(Deadline(self._timeout_s if timeout is None else timeout))

    async def wait_until_ready(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Returns once the node answers requests; a node that is not there yet is waited for.

        Raises DeadlineExceededError when `timeout` (in seconds, None for ever) runs out first.
        """
        wait = ReadinessWait(self.address, timeout)
        while True:
            if wait.is_ready(await self._ask_health(wait.question_timeout_s())):
                return
            await asyncio.sleep(READY_POLL_S)

    async def close(self) -> None:
        """Ends the connection and every stream on it."""
        channel, self._channel = self._channel, None
        self._is_closed = True
        if channel is not None:
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<anydraft.AsyncClient {self.address}{' closed' if self._is_closed else ''}>"

    def _open_channel(self) -> grpc.aio.Channel:
        if self._is_closed:
            raise client_closed()
        if self._channel is None:
            self._channel = dial(self.address)
        return self._channel

    async def _start(self, request: GenerateRequest, deadline: Deadline) -> Call:
        if not self._speaks_our_revision:
            require_same_revision(await self._fetch_info(deadline), self.address)
            self._speaks_our_revision = True
        stub = cast("GenerationServiceAsyncStub", GenerationServiceStub(self._open_channel()))
        return stub.Generate(request, timeout=deadline.remaining_s())

    async def _fetch_info(self, deadline: Deadline) -> ServerInfo:
        stub = cast("ServerServiceAsyncStub", ServerServiceStub(self._open_channel()))
        try:
            response = await stub.GetServerInfo(
                GetServerInfoRequest(), timeout=deadline.remaining_s()
            )
        except grpc.RpcError as exc:
            raise from_rpc_error(exc, address=self.address) from exc
        if response is None:
            raise unreadable_response(self.address)
        return decode_info(response.info)

    async def _ask_health(self, timeout_s: float) -> Health | AnydraftError:
        try:
            return await check(self._open_channel(), GENERATION_SERVICE, timeout_s=timeout_s)
        except grpc.RpcError as exc:
            return from_rpc_error(exc, address=self.address)


class AsyncStream(AsyncIterator[TextEvent]):
    """One answer as it is made: iterate over it, or await its `result()`.

    Closing it, leaving its `async with` block, dropping it, or cancelling the task that reads it
    cancels an answer that is not finished.
    """

    def __init__(
        self,
        start: Callable[[ResumePoint | None], Awaitable[Call]],
        assembler: AnswerAssembler,
        address: str,
        retries: Retries,
    ) -> None:
        """`start` asks for an answer, or for what is left of one."""
        self._start = start
        self._retries = retries
        self._call: Any = None
        self._has_begun = False
        self._assembler = assembler
        self._address = address
        self._is_over = False
        self._error: AnydraftError | None = None

    async def __anext__(self) -> TextEvent:
        while True:
            event = self._assembler.add(await self._read())
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

    async def result(self) -> GenerationResult:
        """The whole answer, once what is left of it has arrived.

        Raises FailedPreconditionError when the stream was closed before that.
        """
        async for _ in self:
            pass
        return self._assembler.result()

    async def close(self) -> None:
        """Cancels an answer that is not finished. Closing twice is harmless."""
        self._is_over = True
        self._assembler.abandon()
        if self._call is not None:
            self._call.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _read(self) -> GenerateResponse:
        """The next response. Raises StopAsyncIteration after the last, or once it is closed."""
        if self._error is not None:
            raise self._error
        if self._is_over:
            raise StopAsyncIteration
        try:
            response = await self._next_of_all_tries()
        except AnydraftError as error:
            self._error = error
            raise
        if response is grpc.aio.EOF:
            self._is_over = True
            raise StopAsyncIteration
        if response is None:
            self._call.cancel()
            self._error = unreadable_response(self._address)
            raise self._error
        return cast(GenerateResponse, response)

    async def _next_of_all_tries(self) -> object:
        while True:
            try:
                return await self._next_response()
            except AnydraftError as error:
                pause_s = self._retries.pause_s(error, may_go_on=self._assembler.may_go_on)
                if pause_s is None or self._is_over:
                    raise
            self._call = None
            await asyncio.sleep(pause_s)
            if self._is_over:
                return grpc.aio.EOF

    async def _next_response(self) -> object:
        """A response or EOF, which also stands for a stream that was closed meanwhile."""
        try:
            if self._call is None:
                if not self._has_begun:
                    self._has_begun = True
                    self._assembler.begin()
                self._call = await self._start(self._assembler.resume_point)
            return await self._call.read()
        except grpc.RpcError as exc:
            raise from_rpc_error(exc, address=self._address) from exc
        except asyncio.CancelledError as exc:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Not this task but the call was cancelled: by `close` of the stream or of the client.
            if self._is_over:
                return grpc.aio.EOF
            raise AnydraftError(
                "the call was cancelled because its client was closed; ask again with another",
                reason="CANCELLED",
            ) from exc
