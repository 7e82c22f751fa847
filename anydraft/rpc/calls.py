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
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import grpc.aio

from anydraft.errors import InvalidRequestError, UnavailableError
from anydraft.rpc.handler import fail, handled, write
from anydraft.rpc.running import RunningCall, current_call
from anydraft.rpc.status import abort

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]


@contextmanager
def answering() -> Iterator[None]:
    """A servicer's method is inside this from where its request is accepted to where its answer is
    over: what a node that stops waits for.

    Raises UnavailableError when the node is stopping already. Without effect outside a call.
    """
    call = current_call.get(None)
    if call is None:
        yield
        return
    if call.is_refused():
        raise _shutting_down()
    call.is_answering = True
    try:
        yield
    finally:
        call.is_answering = False
        call.on_answered()


class Calls(grpc.aio.ServerInterceptor):
    """The running calls of one server; one object for each server."""

    def __init__(self) -> None:
        self._running: set[RunningCall] = set()
        self.are_ending = False
        """Whether no call and no answer may begin any more."""
        self._no_answer_is_left = asyncio.Event()

    async def drain(self, courtesy_s: float) -> None:
        """Refuses new calls, ends those outside `answering()` after `courtesy_s`, and returns when
        no call is inside any more. All of them end as UNAVAILABLE.
        """
        self.are_ending = True
        self._notice()
        await asyncio.sleep(courtesy_s)
        for call in self._running:
            if not call.is_answering:
                call.end()
        await self._no_answer_is_left.wait()

    def _notice(self) -> None:
        if self.are_ending and not any(call.is_answering for call in self._running):
            self._no_answer_is_left.set()

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

    async def _track(self, running: Coroutine[Any, Any, None], context: Context, name: str) -> None:
        call = RunningCall(is_refused=lambda: self.are_ending, on_answered=self._notice)
        self._running.add(call)
        current_call.set(call)
        try:
            if self.are_ending:
                running.close()
                raise _shutting_down()
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
