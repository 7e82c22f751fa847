"""What stands between a servicer's method and gRPC.

An AnydraftError becomes its status with details; so does the status of a call that this node made
to another one. Anything else is a fault of ours: the caller gets INTERNAL without a traceback, the
log gets the traceback. What ends more than the call passes through: asyncio.CancelledError (the
caller left), GeneratorExit, KeyboardInterrupt and SystemExit.

A NodeServer does this for every method that is registered on it (`calls.py`), decorated or not.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, NoReturn, TypeVar, cast

import grpc
import grpc.aio

from anydraft.errors import AnydraftError, InternalError
from anydraft.rpc.running import current_call
from anydraft.rpc.status import abort, from_rpc_error

logger = logging.getLogger(__name__)

_Method = TypeVar("_Method", bound=Callable[..., Any])

Context = grpc.aio.ServicerContext[Any, Any]


def handled(method: _Method) -> _Method:
    """The right one of the two decorators below for `method`."""
    is_stream = inspect.isasyncgenfunction(method)
    return stream_handler(method) if is_stream else unary_handler(method)


def stream_handler(method: _Method) -> _Method:
    """For async generator methods `(self, request or requests, context)` of a servicer.

    The generator is closed in the task of the call as soon as the call ends: CancelledError where
    it awaits, GeneratorExit where it yields. (gRPC leaves that to the garbage collector.)
    """

    @functools.wraps(method)
    async def handle(*args: Any) -> None:
        context: Context = args[-1]
        try:
            generator: AsyncIterator[Any] = method(*args)
            async with aclosing(cast(Any, generator)) as responses:
                async for response in responses:
                    await write(context, response)
        except BaseException as exc:
            await fail(context, exc, method.__qualname__)

    return cast(_Method, handle)


def unary_handler(method: _Method) -> _Method:
    """The same for coroutine methods that return one response."""

    @functools.wraps(method)
    async def handle(*args: Any) -> Any:
        try:
            return await cast(Awaitable[Any], method(*args))
        except BaseException as exc:
            await fail(args[-1], exc, method.__qualname__)

    return cast(_Method, handle)


async def write(context: Context, response: Any) -> None:
    """Sends `response`; asyncio.CancelledError when the caller left, or the call was ended."""
    call = current_call.get(None)
    try:
        if call is not None:
            call.is_writing = True
        await context.write(response)
    except grpc.aio.InternalError as exc:
        # The caller left, and gRPC noticed here before it came round to cancelling this task.
        raise asyncio.CancelledError from exc
    finally:
        if call is not None:
            call.is_writing = False
    if call is not None and call.was_ended:
        raise asyncio.CancelledError


async def fail(context: Context, exc: BaseException, where: str) -> NoReturn:
    """Ends the call with the status of `exc`, which `where` raised."""
    match exc:
        case grpc.aio.AbortError():
            raise exc
        case AnydraftError():
            await abort(context, exc)
        case grpc.RpcError():
            await abort(context, from_rpc_error(exc, address="a node behind this one"))
        case asyncio.CancelledError() | GeneratorExit() | KeyboardInterrupt() | SystemExit():
            raise exc
        case _:
            # Panics of Rust extensions are no Exception, and still only this call's business.
            logger.error("%s failed", where, exc_info=exc)
            await abort(
                context,
                InternalError(
                    f"the server failed ({type(exc).__name__}): its log says why",
                    reason="UNEXPECTED_FAILURE",
                ),
            )
