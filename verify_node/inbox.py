"""What the owners of sessions tell the step thread, kept until it looks.

The only thing that other threads share with it. Of each kind of news the newest counts, so a
session takes the same little room however much it is told.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from verify_node.target import Offer, SessionListener, TargetRequest


@dataclass(slots=True)
class Mail:
    """News of one session since the step thread last looked."""

    opened: bool = False
    offer: Offer | None = None
    first_offers: dict[int, float] = field(default_factory=dict)
    """When the first draft came for each length of the answer, by `time.perf_counter`; there are
    hardly ever more than two of them between two steps."""
    declined_at: int | None = None
    declined_when: float = 0.0
    """By `time.perf_counter`."""
    declined_needs_ms: float = 0.0
    expects_drafts: bool | None = None
    closed: bool = False


class SessionHandle:
    """A session as its owner holds it: something to leave word under. See `TargetSession`."""

    def __init__(self, inbox: Inbox, request: TargetRequest) -> None:
        self._inbox = inbox
        self.request = request
        self.listener: SessionListener

    def offer(self, offer: Offer) -> None:
        self._inbox.offer(self, offer)

    def decline(self, num_committed: int, needs_ms: float = 0.0) -> None:
        self._inbox.decline(self, num_committed, needs_ms)

    def expect_drafts(self, expected: bool) -> None:
        self._inbox.expect_drafts(self, expected)

    def close(self) -> None:
        self._inbox.close(self)


class Inbox:
    """News by session."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._mail: dict[SessionHandle, Mail] = {}
        self._ended = False

    def open(self, session: SessionHandle) -> bool:
        """False when nobody will look any more."""
        with self._changed:
            if not self._ended:
                self._of(session).opened = True
            return not self._ended

    def offer(self, session: SessionHandle, offer: Offer) -> None:
        with self._changed:
            mail = self._of(session)
            mail.offer = offer
            if offer.tokens:
                mail.first_offers.setdefault(offer.num_committed, time.perf_counter())

    def decline(self, session: SessionHandle, num_committed: int, needs_ms: float) -> None:
        with self._changed:
            mail = self._of(session)
            mail.declined_at, mail.declined_when = num_committed, time.perf_counter()
            mail.declined_needs_ms = needs_ms

    def expect_drafts(self, session: SessionHandle, expected: bool) -> None:
        with self._changed:
            self._of(session).expects_drafts = expected

    def close(self, session: SessionHandle) -> None:
        with self._changed:
            self._of(session).closed = True

    def end(self) -> None:
        """Nobody may open a session any more; `take` returns None from now on."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def take(self, until: float | None) -> dict[SessionHandle, Mail] | None:
        """All news, in the order of the first about each session; waits for some until then
        (`time.perf_counter`; None for ever). None after the end.
        """
        with self._changed:
            while not (self._mail or self._ended):
                wait_s = None if until is None else until - time.perf_counter()
                if wait_s is not None and wait_s <= 0:
                    break
                self._changed.wait(wait_s)
            return None if self._ended else self._drain()

    def rest(self) -> dict[SessionHandle, Mail]:
        """What was not taken before the end."""
        with self._changed:
            return self._drain()

    def _of(self, session: SessionHandle) -> Mail:
        """Held under the lock."""
        if self._ended:
            return Mail()
        self._changed.notify()
        return self._mail.setdefault(session, Mail())

    def _drain(self) -> dict[SessionHandle, Mail]:
        mail, self._mail = self._mail, {}
        return mail
