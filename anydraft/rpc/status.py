"""Errors to gRPC status and back, without losing their class, reason or retry delay.

What travels beside code and message is `google.rpc`: `ErrorInfo` always, `RetryInfo` when trying
again may help, `BadRequest` when one field of the request is at fault.
"""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf import any_pb2, duration_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status  # type: ignore[import-untyped]

from anydraft.errors import (
    AnydraftError,
    ContextFullError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidFieldError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    UnavailableError,
    UnsupportedModelError,
)

DOMAIN = "anydraft"

_M = TypeVar("_M", bound=Message)

# The message travels up to three times, percent-encoded once, in trailers. Beyond 8 KB gRPC refuses
# some of them, at random, and beyond 16 all.
_MAX_MESSAGE_BYTES = 1000

_CLASS_KEY = "class"

_UNREADABLE = "Exception deserializing response!"
"""What a synchronous client of grpcio says; an asynchronous one gives None for the response."""

# How gRPC's resolvers begin, and what they say inside longer messages.
_RESOLVER_WORDS = ("errors resolving", "DNS resolution failed", "lookup failed for")

# Subclasses that a status code alone does not tell from their parent.
_NAMED_CLASSES: dict[str, type[AnydraftError]] = {
    cls.__name__: cls for cls in (UnsupportedModelError,)
}

_CLASS_OF_STATUS: dict[grpc.StatusCode, type[AnydraftError]] = {
    **{
        cls.status: cls
        for cls in (
            InvalidRequestError,
            NotFoundError,
            PermissionDeniedError,
            FailedPreconditionError,
            ContextFullError,
            ResourceExhaustedError,
            UnavailableError,
            DeadlineExceededError,
            InternalError,
        )
    },
    grpc.StatusCode.ABORTED: UnavailableError,
    grpc.StatusCode.ALREADY_EXISTS: FailedPreconditionError,
    grpc.StatusCode.DATA_LOSS: InternalError,
    grpc.StatusCode.UNAUTHENTICATED: FailedPreconditionError,
    grpc.StatusCode.UNIMPLEMENTED: FailedPreconditionError,
    grpc.StatusCode.UNKNOWN: InternalError,
}


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: AnydraftError) -> NoReturn:
    """Ends the call with `error`; never returns. CancelledError when the caller left meanwhile."""
    status = rpc_status.to_status(to_status(error))
    try:
        await context.abort(status.code, status.details, status.trailing_metadata)
    except (grpc.aio.InternalError, grpc.aio.UsageError) as exc:
        # gRPC noticed here, before it came round to cancelling this task; or another status, which
        # this task was cancelled over, is on its way.
        raise asyncio.CancelledError from exc
    raise error  # abort raises; this tells type checkers of every gRPC release


def to_status(error: AnydraftError) -> status_pb2.Status:
    """`error` as `google.rpc.Status`."""
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)
    if type(error).__name__ in _NAMED_CLASSES:
        info.metadata[_CLASS_KEY] = type(error).__name__
    details: list[Message] = [info]
    message = str(error).encode(errors="replace")[:_MAX_MESSAGE_BYTES].decode(errors="ignore")
    if error.retry_after_s is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after_s * 1000))
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    if isinstance(error, InvalidFieldError):
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=message, reason=error.reason
        )
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    return status_pb2.Status(
        code=error.status.value[0], message=message, details=[_pack(detail) for detail in details]
    )


def unreadable_response(address: str = "the server") -> InternalError:
    """For bytes that are not the message that a call gives."""
    return InternalError(
        f"{address} sent a response that cannot be read: check that it is an anydraft node, and "
        "use the same anydraft version on both sides",
        reason="RESPONSE_UNREADABLE",
    )


def from_rpc_error(exc: grpc.RpcError, *, address: str = "the server") -> AnydraftError:
    """The error that the other side raised, or what fits when gRPC itself failed.

    `address` is named in messages about the connection. A call that was cancelled comes back as a
    plain AnydraftError whose reason is CANCELLED.
    """
    code = exc.code() or grpc.StatusCode.UNKNOWN
    message = exc.details() or code.name
    details = _details_of(exc)
    info = _unpack(details, error_details_pb2.ErrorInfo())
    if info is None or info.domain != DOMAIN:
        return _from_bare_status(code, message, address)
    return _rebuild(code, message, info, details)


def _rebuild(
    code: grpc.StatusCode,
    message: str,
    info: error_details_pb2.ErrorInfo,
    details: list[any_pb2.Any],
) -> AnydraftError:
    retry = _unpack(details, error_details_pb2.RetryInfo())
    retry_after_s = retry.retry_delay.ToMilliseconds() / 1000 if retry is not None else None
    bad_request = _unpack(details, error_details_pb2.BadRequest())
    if bad_request is not None and bad_request.field_violations:
        field = bad_request.field_violations[0].field
        return InvalidFieldError(message, field=field, reason=info.reason)
    cls = _NAMED_CLASSES.get(info.metadata.get(_CLASS_KEY, ""))
    if cls is None or cls.status is not code:
        # Our own servers send UNKNOWN for the bare base class only.
        bare = code is grpc.StatusCode.UNKNOWN
        cls = AnydraftError if bare else _CLASS_OF_STATUS.get(code, AnydraftError)
    return cls(message, reason=info.reason, retry_after_s=retry_after_s)


def _from_bare_status(code: grpc.StatusCode, message: str, address: str) -> AnydraftError:
    """For statuses without our `ErrorInfo`: from gRPC itself, a proxy, or another service."""
    match code:
        case grpc.StatusCode.OK:
            # A write that came after the end of the call fails like this.
            return UnavailableError(
                f"{address} ended the call before it was finished: ask again",
                reason="TRUNCATED_STREAM",
            )
        case grpc.StatusCode.UNAVAILABLE:
            return _unreachable(message, address)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceededError(
                f"{address} did not finish in time: allow a longer timeout, or ask for less",
                reason="DEADLINE_EXCEEDED",
            )
        case grpc.StatusCode.CANCELLED:
            error = AnydraftError("the call was cancelled; ask again", reason="CANCELLED")
            error.status = code
            return error
        case grpc.StatusCode.UNIMPLEMENTED:
            return FailedPreconditionError(
                f"{address} does not serve this call ({message}): "
                "give the address of an anydraft node that does",
                reason="UNIMPLEMENTED",
            )
        case grpc.StatusCode.INTERNAL if message == _UNREADABLE:
            return unreadable_response(address)
        case grpc.StatusCode.RESOURCE_EXHAUSTED if "larger than max" in message:
            return ResourceExhaustedError(
                f"a message exceeds the size limit ({message}): shorten the prompt",
                reason="MESSAGE_TOO_LARGE",
            )
    cls = _CLASS_OF_STATUS.get(code, AnydraftError)
    error = cls(f"{address} answered {code.name}: {message}", reason=code.name)
    error.status = code
    return error


def _unreachable(message: str, address: str) -> UnavailableError:
    cause = message.rsplit(": ", 1)[-1].rstrip("]")
    if any(words in message for words in _RESOLVER_WORDS):
        return UnavailableError(
            f"{address} cannot be found: its host name does not resolve ({cause}). Check the "
            "spelling and the network's DNS, or give an IP address",
            reason="NAME_UNRESOLVED",
        )
    if "failed to connect" not in message.lower():
        return UnavailableError(
            f"the connection to {address} was lost ({message}): check that the node still runs, "
            "then ask again",
            reason="CONNECTION_LOST",
        )
    return UnavailableError(
        f"cannot connect to {address} ({cause}): start a node there, or give the address of one",
        reason="UNREACHABLE",
    )


def _details_of(exc: grpc.RpcError) -> list[any_pb2.Any]:
    """Details that cannot be read count as none: the code is still worth reporting."""
    try:
        status = rpc_status.from_call(exc)
    except (ValueError, DecodeError):
        return []
    return list(status.details) if status is not None else []


def _pack(detail: Message) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def _unpack(details: list[any_pb2.Any], into: _M) -> _M | None:
    return next((into for detail in details if detail.Unpack(into)), None)
