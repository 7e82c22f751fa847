"""Who gets a place on the node: a bounded line of sessions that wait for one, first come first
served. Whether there is memory for the first of them is not known here."""

from __future__ import annotations

from dataclasses import dataclass

from anydraft.errors import ResourceExhaustedError
from verify_node.scheduled_session import ScheduledSession

_RETRY_AFTER_S = 1.0


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    max_sessions: int
    """That have been opened and are not finished; those that are parked count."""
    max_waiting: int
    """In the line behind them."""
    max_wait_s: float
    """In the line."""


class Admission:
    """The step thread's own. Times are those of `time.perf_counter`."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._line: dict[ScheduledSession, float] = {}
        """Those that wait, by their deadlines, which come in the order of the line."""
        self._admitted: set[ScheduledSession] = set()

    @property
    def num_sessions(self) -> int:
        """How many have a place."""
        return len(self._admitted)

    @property
    def num_waiting(self) -> int:
        return len(self._line)

    def join(self, session: ScheduledSession, now: float) -> None:
        """At the end of the line. See `refuse_last`."""
        self._line[session] = now + self._limits.max_wait_s

    def first(self) -> ScheduledSession | None:
        """Who gets the next place; None while all are taken, or nobody waits."""
        if len(self._admitted) >= self._limits.max_sessions:
            return None
        return next(iter(self._line), None)

    def admit(self, session: ScheduledSession) -> None:
        """It has left the line for a place, until it leaves."""
        del self._line[session]
        self._admitted.add(session)

    def leave(self, session: ScheduledSession) -> None:
        """The line, or its place. Idempotent."""
        self._line.pop(session, None)
        self._admitted.discard(session)

    def check_length(self) -> None:
        """Raises the ResourceExhaustedError of whoever joined last, when the line is too long."""
        if len(self._line) > self._limits.max_waiting:
            raise _full(
                f"the node is full: {self.num_sessions} sessions are open and "
                f"{self.num_waiting - 1} wait for a place."
            )

    def due_at(self) -> float | None:
        """When the first of the line has waited too long; None when nobody waits."""
        return next(iter(self._line.values()), None)

    def expired(self, now: float) -> list[ScheduledSession]:
        """Those that have waited too long; they are still in the line."""
        return [session for session, deadline in self._line.items() if deadline <= now]

    def waited_too_long(self) -> ResourceExhaustedError:
        return _full(f"the node was full for {self._limits.max_wait_s:g} s.")


def _full(what: str) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"{what} Try again shortly, or start the node with larger --max-sessions and --kv-tokens.",
        reason="NODE_FULL",
        retry_after_s=_RETRY_AFTER_S,
    )
