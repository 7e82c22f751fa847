"""One time limit over several calls."""

from __future__ import annotations

import math
from time import monotonic

from anydraft.errors import InvalidRequestError


def require_timeout(timeout_s: float | None) -> float | None:
    """`timeout_s` itself; InvalidRequestError unless it is a number of seconds above 0, or None."""
    if timeout_s is not None and not 0 < timeout_s < math.inf:
        raise InvalidRequestError(
            f"timeout is {timeout_s!r}: it must be a number of seconds above 0, "
            "or None for no limit",
            reason="INVALID_TIMEOUT",
        )
    return timeout_s


class Deadline:
    """`timeout_s` from now; None never ends."""

    def __init__(self, timeout_s: float | None) -> None:
        limit_s = require_timeout(timeout_s)
        self._ends_at_s = None if limit_s is None else monotonic() + limit_s

    def remaining_s(self) -> float | None:
        """What is left, at least 0; None when there is no limit."""
        return None if self._ends_at_s is None else max(0.0, self._ends_at_s - monotonic())

    @property
    def is_over(self) -> bool:
        return self.remaining_s() == 0
