"""The errors that anydraft raises, on either node and in the SDK.

    AnydraftError
    ├── InvalidRequestError      a value is out of range, a prompt is empty      INVALID_ARGUMENT
    │   └── InvalidFieldError        one named field of the request is at fault
    ├── NotFoundError            no such model, file or session                  NOT_FOUND
    ├── PermissionDeniedError    somebody else's session                         PERMISSION_DENIED
    ├── FailedPreconditionError  wrong model, revision, hash, tokenizer files    FAILED_PRECONDITION
    │   └── UnsupportedModelError    a model that cannot be served exactly
    ├── ContextFullError         prompt plus answer exceed the context           OUT_OF_RANGE
    ├── ResourceExhaustedError   no room: KV cache, disk, sessions               RESOURCE_EXHAUSTED
    ├── UnavailableError         the other node is absent or going away          UNAVAILABLE
    ├── DeadlineExceededError    `timeout` ran out                               DEADLINE_EXCEEDED
    └── InternalError            a fault of ours                                 INTERNAL

Every message says what is wrong and what to do about it. `reason` is the UPPER_SNAKE word that
travels in `google.rpc.ErrorInfo`, for programs; `anydraft.reasons` lists them all.
"""

from __future__ import annotations

from typing import Any

import grpc


class AnydraftError(Exception):
    """Base of all of them. `str(error)` is one sentence or two, the last of which names the fix."""

    status: grpc.StatusCode = grpc.StatusCode.UNKNOWN

    def __init__(self, message: str, *, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        """UPPER_SNAKE, at most 63 characters, stable between releases."""
        self.retry_after_s = retry_after_s
        """When trying again may help, in seconds; None when it will not help by itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is otherwise made again from `args`, which holds no keyword arguments.
        return _revive, (type(self), self.args), self.__dict__


class InvalidRequestError(AnydraftError):
    status = grpc.StatusCode.INVALID_ARGUMENT


class InvalidFieldError(InvalidRequestError):
    """One field is at fault; `field` is its path, such as "sampling.top_p"."""

    def __init__(
        self,
        message: str,
        *,
        field: str,
        reason: str,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, reason=reason, retry_after_s=retry_after_s)
        self.field = field


class NotFoundError(AnydraftError):
    status = grpc.StatusCode.NOT_FOUND


class PermissionDeniedError(AnydraftError):
    status = grpc.StatusCode.PERMISSION_DENIED


class FailedPreconditionError(AnydraftError):
    status = grpc.StatusCode.FAILED_PRECONDITION


class UnsupportedModelError(FailedPreconditionError):
    """The model cannot be served with the target's exact output."""


class ContextFullError(AnydraftError):
    status = grpc.StatusCode.OUT_OF_RANGE


class ResourceExhaustedError(AnydraftError):
    status = grpc.StatusCode.RESOURCE_EXHAUSTED


class UnavailableError(AnydraftError):
    status = grpc.StatusCode.UNAVAILABLE


class DeadlineExceededError(AnydraftError):
    status = grpc.StatusCode.DEADLINE_EXCEEDED


class InternalError(AnydraftError):
    status = grpc.StatusCode.INTERNAL


def _revive(cls: type[AnydraftError], args: tuple[Any, ...]) -> AnydraftError:
    """What `pickle` and `copy` begin with; the attributes follow by themselves."""
    return cls.__new__(cls, *args)
