"""A Verify call that can be written to and read from at once, and left at any time.

Works around three habits of grpc.aio (as of 1.85). Cancelling a coroutine that waits for a message
cancels the whole call. A write that meets the end of the call replaces the status that the server
sent by INTERNAL. And `read` forgets messages that came before a status; the iterator does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, cast

import grpc
import grpc.aio

from anydraft.v1.verification_pb2 import VerifyRequest, VerifyResponse
from anydraft.v1.verification_pb2_grpc import VerificationServiceStub

if TYPE_CHECKING:
    from anydraft.v1.verification_pb2_grpc import VerificationServiceAsyncStub

_T = TypeVar("_T")

_FAILED_WRITE = "Internal error from Core"
_STATUS_TIMEOUT_S = 0.2


class VerifyCall:
    """One reader and writers, each at its own pace."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float | None) -> None:
        stub = cast("VerificationServiceAsyncStub", VerificationServiceStub(channel))
        self._call = stub.Verify(timeout=timeout_s)
        self._call.add_done_callback(self._remember_status)
        self._responses = aiter(self._call)
        self._reading: asyncio.Future[VerifyResponse | None] | None = None
        self._status: grpc.aio.AioRpcError | None = None
        self._writing = asyncio.Lock()
        self.sent_bytes = 0
        self.received_bytes = 0

    @property
    def done(self) -> bool:
        return bool(self._call.done())

    async def write(self, request: VerifyRequest) -> bool:
        """False when the call is over; `read` tells why. One at a time, in the order of calls."""
        try:
            async with self._writing:
                await self._call.write(request)
        except (grpc.RpcError, asyncio.InvalidStateError):
            return False
        self.sent_bytes += request.ByteSize()
        return True

    async def done_writing(self) -> None:
        await self._call.done_writing()

    async def read(self) -> VerifyResponse | None:
        """The next message, None at the end. Raises grpc.aio.AioRpcError with the status that the
        server sent. Cancelling this loses nothing: the next `read` gets the message."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(anext(self._responses, None))
        try:
            response = await asyncio.shield(self._reading)
        except grpc.aio.AioRpcError as error:
            raise await self._sent_status(error) from None
        self._reading = None
        if response is not None:
            self.received_bytes += response.ByteSize()
        return response

    def cancel(self) -> None:
        """Ends the call if it is not over. Idempotent."""
        self._call.cancel()
        if self._reading is not None:
            # Nobody will ask what it read; asyncio complains of errors that nobody saw.
            self._reading.add_done_callback(_see_error)

    def _remember_status(self, call: Any) -> None:
        # Runs as soon as there is a status, before a failed write can put its own in place.
        self._status = grpc.aio.AioRpcError(
            _result(call.code()),
            initial_metadata=grpc.aio.Metadata(),
            trailing_metadata=_result(call.trailing_metadata()) or grpc.aio.Metadata(),
            details=_result(call.details()),
        )

    async def _sent_status(self, found: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        first = self._status
        if first is not None and first.details() != _FAILED_WRITE:
            return first
        # The failed write came first; the server's status is on its way.
        deadline = asyncio.get_running_loop().time() + _STATUS_TIMEOUT_S
        while asyncio.get_running_loop().time() < deadline:
            if await self._call.details() != _FAILED_WRITE:
                self._remember_status(self._call)
                return self._status or found
            await asyncio.sleep(0.01)
        return found


def _see_error(reading: asyncio.Future[Any]) -> None:
    if not reading.cancelled():
        reading.exception()


def _result(waiting: Coroutine[Any, Any, _T]) -> _T:
    """What a coroutine returns that has nothing to wait for."""
    try:
        waiting.send(None)
    except StopIteration as stop:
        return cast(_T, stop.value)
    waiting.close()
    raise RuntimeError("grpc.aio announced a status that it does not have")
