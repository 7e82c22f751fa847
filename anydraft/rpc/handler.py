"""Decorators that stand between a servicer's method and gRPC.

An AnydraftError becomes its status with details; so does the status of a call that this node made
to another one. Anything else is a fault of ours: the caller gets INTERNAL without a traceback, the
log gets the traceback. asyncio.CancelledError, which says that the caller left, passes through.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, TypeVar, cast

import grpc
import grpc.aio

from anydraft.errors import AnydraftError, InternalError
from anydraft.rpc.status import abort, from_rpc_error

logger = logging.getLogger(__name__)

_Method = TypeVar("_Method", bound=Callable[..., Any])


def stream_handler(method: _Method) -> _Method:
    """For async generator methods `(self, request or requests, context)` of a servicer.

    The generator is closed in the task of the call as soon as the call ends: CancelledError where
    it awaits, GeneratorExit where it yields. (gRPC leaves that to the garbage collector.)
    """

    @functools.wraps(method)
    async def handle(self: Any, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            generator: AsyncIterator[Any] = method(self, request, context)
            async with aclosing(cast(Any, generator)) as responses:
                async for response in responses:
                    await _write(context, response)
        except Exception as exc:
            await _fail(context, exc, method.__qualname__)

    return cast(_Method, handle)


def unary_handler(method: _Method) -> _Method:
    """The same for coroutine methods that return one response."""

    @functools.wraps(method)
    async def handle(self: Any, request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await cast(Awaitable[Any], method(self, request, context))
        except Exception as exc:
            await _fail(context, exc, method.__qualname__)

    return cast(_Method, handle)


async def _write(context: grpc.aio.ServicerContext[Any, Any], response: Any) -> None:
    try:
        await context.write(response)
    except grpc.aio.InternalError as exc:
        # The caller left, and gRPC noticed here before it came round to cancelling this task.
        raise asyncio.CancelledError from exc


async def _fail(
    context: grpc.aio.ServicerContext[Any, Any], exc: Exception, where: str
) -> NoReturn:
    match exc:
        case grpc.aio.AbortError():
            raise exc
        case AnydraftError():
            await abort(context, exc)
        case grpc.RpcError():
            await abort(context, from_rpc_error(exc, address="a node behind this one"))
        case _:
            logger.error("%s failed", where, exc_info=exc)
            await abort(
                context,
                InternalError(
                    f"the server failed ({type(exc).__name__}): its log says why",
                    reason="UNEXPECTED_FAILURE",
                ),
            )
