"""What every call to a node passes through, whichever service it is for.

- Its request is read here. Bytes that are no request, or no request at all, end the call as
  INVALID_ARGUMENT with one line in the log at most. (grpc.aio logs a traceback for the first and
  answers UNKNOWN; the second it never answers.)
- It is known to be running, so that a node that stops waits for answers and for nothing else.
- Errors become statuses, as `anydraft.rpc.handler` does for one method.

Works as an interceptor: servicers and their registration stay those of gRPC.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import grpc
import grpc.aio

from anydraft.errors import InvalidRequestError, UnavailableError
from anydraft.rpc.handler import fail, handled, write
from anydraft.rpc.status import abort

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


class _Call:
    """One running call."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._task = cast("asyncio.Task[Any]", asyncio.current_task())
        self.is_answering = False
        self.was_ended = False

    def end(self) -> None:
        if not self.was_ended:
            self.was_ended = True
            self._task.cancel()

    def begin_answer(self) -> None:
        if self._calls.are_ending:
            raise _shutting_down()
        self.is_answering = True


_current: ContextVar[_Call] = ContextVar("_current")


@contextmanager
def answering() -> Iterator[None]:
    """A servicer's method is inside this from where its request is accepted to where its answer is
    over: what a node that stops waits for.

    Raises UnavailableError when the node is stopping already. Without effect outside a call.
    """
    call = _current.get(None)
    if call is None:
        yield
        return
    call.begin_answer()
    try:
        yield
    finally:
        call.is_answering = False


class Calls(grpc.aio.ServerInterceptor):
    """The running calls of one server; one object for each server."""

    def __init__(self) -> None:
        self._running: set[_Call] = set()
        self.are_ending = False
        """Whether calls that are not answering yet are over."""

    def end_all_but_answers(self) -> None:
        """Ends every call outside `answering()` as UNAVAILABLE, and those that still come."""
        self.are_ending = True
        for call in self._running:
            if not call.is_answering:
                call.end()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        found = await continuation(handler_call_details)
        if found is None:  # gRPC answers UNIMPLEMENTED
            return None
        name = handler_call_details.method.removeprefix("/")
        method = handled(
            found.unary_unary or found.unary_stream or found.stream_unary or found.stream_stream
        )

        async def run(requests: AsyncIterator[Any], context: Context) -> None:
            request = requests if found.request_streaming else await _only(requests)
            response = await method(request, context)
            if not found.response_streaming:
                await write(context, response)

        async def track(requests: AsyncIterator[Any], context: Context) -> None:
            await self._track(run(requests, context), context, name)

        # All four kinds of call look the same on the wire. As a stream of requests, what is wrong
        # with a request is raised where it is read.
        return grpc.stream_stream_rpc_method_handler(
            track, _decoder(found.request_deserializer, name), found.response_serializer
        )

    async def _track(self, running: Awaitable[None], context: Context, name: str) -> None:
        call = _Call(self)
        self._running.add(call)
        _current.set(call)
        try:
            if self.are_ending:
                call.end()
            await running
        except asyncio.CancelledError:
            if not call.was_ended or context.cancelled():
                raise
            await abort(context, _shutting_down())
        except BaseException as exc:
            await fail(context, exc, name)
        finally:
            self._running.discard(call)


async def _only(requests: AsyncIterator[Any]) -> Any:
    """The request of a call that takes one."""
    async for request in requests:
        return request
    raise InvalidRequestError(
        "the call ended before its request came: send one message", reason="REQUEST_MISSING"
    )


def _decoder(decode: Callable[[bytes], Any], name: str) -> Callable[[bytes], Any]:
    def decode_or_refuse(data: bytes) -> Any:
        try:
            return decode(data)
        except Exception as exc:
            logger.info("%s refused: a request of %d bytes that is none", name, len(data))
            raise InvalidRequestError(
                f"the request is no message of {name}: use the same anydraft version on both sides",
                reason="REQUEST_UNREADABLE",
            ) from exc

    return decode_or_refuse


def _shutting_down() -> UnavailableError:
    return UnavailableError(
        "this node is shutting down: ask another one, or this one once it is back",
        reason="SHUTTING_DOWN",
    )
