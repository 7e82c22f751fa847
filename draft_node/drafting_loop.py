"""Drafting for one session: grow, send, grow on. No verdict is waited for; it moves the root."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from anydraft.errors import AnydraftError, InternalError
from anydraft.text.tree import TextTree
from anydraft.v1.verification_pb2 import Draft
from draft_node.drafters.base import DraftStream
from draft_node.drafting_thread import DraftingThread
from draft_node.outbox import Outbox

_log = logging.getLogger(__name__)

DEFAULT_MAX_DRAFT = 96
"""Pieces beyond the committed text. The verifier's credit is usually less; this bounds memory."""

MAX_DRAFT_BYTES = 64 * 1024
"""Of their text. A single message that exceeds gRPC's limit would end the call."""


class Committed(Protocol):
    """What drafting needs to hear of a step: a `Verdict`, or a `Commit`."""

    @property
    def base_bytes(self) -> int: ...

    @property
    def text(self) -> str: ...

    @property
    def credit_pieces(self) -> int: ...

    @property
    def turn_ms(self) -> float: ...


@dataclass(frozen=True, slots=True)
class _Opened:
    """Where in the order of commits a verifier was opened."""

    credit_pieces: int
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class _Begun:
    """A `Committed` of all that was committed elsewhere."""

    text: str
    credit_pieces: int
    base_bytes: int = 0
    turn_ms: float = 0.0


class DraftingLoop:
    """Belongs to one event loop, and owns its stream. `opened` and `commit` are told what the
    verifier said; `run` drafts and sends; `close` in the end, whether or not it ran.

    Each pass begins by hearing what has come by then, on the drafting thread, to which tree and
    stream belong from the moment when the pass is asked for until it is done: with many sessions a
    pass may wait for longer than a verdict stays the newest.
    """

    def __init__(
        self,
        stream: DraftStream,
        worker: DraftingThread,
        send: Callable[[Draft], Awaitable[bool]],
        *,
        max_draft: int = DEFAULT_MAX_DRAFT,
        in_turn: bool = False,
    ) -> None:
        """`max_draft` bounds the pieces beyond the committed text, besides the verifier's credit.
        `send` tells whether anybody still listens. `in_turn`: what is sent has the target start its
        step, which slows further passes down, so it is sent when no more of them pay."""
        self._stream = stream
        self._worker = worker
        self._send = send
        self._max_draft = max_draft
        self._in_turn = in_turn
        self._has_grown = False
        """Whether the last pass hung anything, and no verdict has come since."""
        self._tree = TextTree(max_pieces=max_draft, max_bytes=MAX_DRAFT_BYTES)
        self._outbox = Outbox(self._tree)
        self._commits: deque[Committed | _Opened] = deque()
        self._woken = asyncio.Event()
        self._credit_pieces: int | None = None
        self._credit_bytes = 0
        self._closed = False
        self._silent_at: int | None = None
        """The committed text to which the drafter had nothing to add, by its length."""
        self.sent_pieces = 0
        self.draft_ms = 0.0

    def opened(self, credit_pieces: int, credit_bytes: int, begun: str = "") -> None:
        """A verifier takes drafts from now on. It may be another one than before: it knows nothing
        of what was sent. `begun`: the text of an answer that was begun before this was made."""
        if not self._closed:
            self._commits.append(_Opened(credit_pieces, credit_bytes))
            if begun:
                self._commits.append(_Begun(text=begun, credit_pieces=credit_pieces))
            self._woken.set()

    def commit(self, committed: Committed) -> None:
        if not self._closed:
            self._commits.append(committed)
            self._woken.set()

    @property
    def num_unheard(self) -> int:
        """Commits that no pass has taken in yet."""
        return len(self._commits)

    def close(self) -> None:
        """Makes `run` return after the pass at hand, behind which the stream is closed. Waits for
        neither, so that nothing can come between. Idempotent."""
        if not self._closed:
            self._closed = True
            self._woken.set()
            self._worker.post(self._stream.close)

    async def run(self) -> None:
        """Until `close`, or cancelled. Also returns when nobody listens any more, and when drafting
        failed, which is logged: an answer does not depend on drafts."""
        try:
            while not self._closed and await self._turn():
                pass
        except AnydraftError as error:
            _log.warning("drafting stopped, the answer goes on without drafts: %s", error)
        except Exception:
            _log.warning("drafting failed, the answer goes on without drafts", exc_info=True)
        finally:
            # Nobody drafts from here on: what the stream holds is not kept until the answer ends.
            self.close()

    async def _turn(self) -> bool:
        """Sends what is due while the next pass runs. False when nobody listens any more."""
        self._hear()
        draft = self._due()
        grown = self._worker.submit(self._worth, self._grow) if self._may_grow() else None
        listens = draft is None or await self._send_draft(draft)
        if grown is not None:
            self.draft_ms += await grown
        elif draft is None:
            self._woken.clear()
            await self._woken.wait()
        return listens

    def _grow(self) -> None:
        """One pass, on the drafting thread; none when this was closed meanwhile, or what has been
        heard leaves no room."""
        if self._closed:
            return
        self._hear()
        if self._may_grow():
            held = self._tree.num_pieces
            self._stream.grow(self._tree, self._room())
            self._has_grown = self._tree.num_pieces > held

    def _worth(self) -> float:
        """Of the pass that is asked for, by what has come until now."""
        if self._closed:
            return 1.0
        self._hear()
        return self._stream.worth(self._tree) if self._may_grow() else 1.0

    def _hear(self) -> None:
        while self._commits:
            committed = self._commits[0]
            if isinstance(committed, _Opened):
                self._credit_pieces = committed.credit_pieces
                self._credit_bytes = committed.credit_bytes
                self._outbox.forget_sent()
                self._silent_at = None
                self._commits.popleft()
                continue
            if committed.base_bytes != self._tree.committed_bytes:
                raise InternalError(
                    f"A verdict begins at byte {committed.base_bytes}, but "
                    f"{self._tree.committed_bytes} are committed. Report this as a bug.",
                    reason="VERDICT_OUT_OF_ORDER",
                )
            self._credit_pieces = committed.credit_pieces
            self._has_grown = False
            self._tree.commit(committed.text.encode())
            self._outbox.forget_decided()
            self._stream.commit(committed.text, turn_ms=committed.turn_ms)
            # Only now: what went wrong with it must not be forgotten by a pass that asks again.
            self._commits.popleft()

    def _due(self) -> Draft | None:
        """What to send now, if anything."""
        if not self._credit_pieces or self._is_held_back():
            return None
        draft = self._outbox.take(self._credit_pieces, self._credit_bytes)
        if draft is None and self._has_nothing_to_say():
            self._silent_at = self._tree.committed_bytes
            draft = self._outbox.nothing(needs_ms=self._stream.needs_ms)
        return draft

    def _is_held_back(self) -> bool:
        return self._in_turn and self._has_grown and self._may_grow()

    def _has_nothing_to_say(self) -> bool:
        """Once for each text: a verifier that waits must hear that it waits in vain, or that its
        turn has come."""
        is_silent = self._stream.idle and (self._in_turn or not self._tree.num_pieces)
        return is_silent and self._silent_at != self._tree.committed_bytes

    def _may_grow(self) -> bool:
        return self._room() > 0 and not self._stream.idle

    def _room(self) -> int:
        """How many more pieces may be held. Before the verifier has opened the session it is
        likely to take some; with a credit of 0 it wants none, and drafting would cost for nothing.
        """
        credit = self._max_draft if self._credit_pieces is None else self._credit_pieces
        return min(self._max_draft, credit) - self._tree.num_pieces

    async def _send_draft(self, draft: Draft) -> bool:
        self.sent_pieces += len(draft.pieces)
        return await self._send(draft)
