"""One time limit over several calls."""

from __future__ import annotations

import math
from numbers import Real
from time import monotonic

from anydraft.errors import InvalidRequestError

_LONGEST_S = 1e9
"""gRPC counts nanoseconds since 1970 in 64 bits; beyond them a call has no time at all."""


def require_timeout(timeout_s: float | None) -> float | None:
    """`timeout_s` itself; InvalidRequestError unless it is a number of seconds above 0, or None."""
    if timeout_s is None:
        return None
    is_number = isinstance(timeout_s, Real) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s < math.inf:
        raise InvalidRequestError(
            f"timeout is {timeout_s!r}: it must be a number of seconds above 0, "
            "or None for no limit",
            reason="INVALID_TIMEOUT",
        )
    return timeout_s


class Deadline:
    """`timeout_s` from now; None never ends, nor does what is longer than gRPC can count."""

    def __init__(self, timeout_s: float | None) -> None:
        limit_s = require_timeout(timeout_s)
        if limit_s is not None and limit_s > _LONGEST_S:
            limit_s = None
        self._ends_at_s = None if limit_s is None else monotonic() + limit_s

    def remaining_s(self) -> float | None:
        """What is left, at least 0; None when there is no limit."""
        return None if self._ends_at_s is None else max(0.0, self._ends_at_s - monotonic())

    @property
    def is_over(self) -> bool:
        return self.remaining_s() == 0
