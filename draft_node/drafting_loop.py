"""Drafting for one session: ahead of the verdicts as long as they agree, anew when they do not."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable

from anydraft.errors import AnydraftError, InternalError
from anydraft.v1.verification_pb2 import Draft, Verdict
from draft_node.draft_window import DraftWindow
from draft_node.drafters.base import DraftStream
from draft_node.drafting_thread import DraftingThread
from draft_node.send_policy import AHEAD_PIECES, SendPolicy

_log = logging.getLogger(__name__)

DEFAULT_MAX_DRAFT = 24

_MIN_REACH = 0.1
"""A draft that holds with less than this chance as a whole is not worth going on with."""


class DraftingLoop:
    """Belongs to one event loop, and owns its stream. `opened` and `verdict` are told what the
    verifier said; `run` drafts and sends; `close` in the end, whether or not it ran.

    Verdicts wait until the step at hand is done, because what it drafts belongs to the text that
    was known when it began; so nothing that agrees is ever drafted twice.
    """

    def __init__(
        self,
        stream: DraftStream,
        worker: DraftingThread,
        send: Callable[[Draft], Awaitable[bool]],
        *,
        max_draft: int = DEFAULT_MAX_DRAFT,
    ) -> None:
        """`max_draft` bounds the pieces beyond the committed text, besides the verifier's credit.
        `send` tells whether anybody still listens."""
        self._stream = stream
        self._worker = worker
        self._send = send
        self._max_draft = max_draft
        self._window = DraftWindow()
        self._policy = SendPolicy()
        self._verdicts: deque[Verdict] = deque()
        self._woken = asyncio.Event()
        self._credit: int | None = None
        self._flush = False
        self._closed = False
        self._silent_at: int | None = None
        """The committed text to which the drafter had nothing to add, by its length."""
        self._waiting_since: tuple[int, float] | None = None
        """Of a first group without verdict: its number, and when it was sent."""
        self.sent_pieces = 0
        self.draft_ms = 0.0

    def opened(self, credit_pieces: int) -> None:
        self._credit = credit_pieces
        self._woken.set()

    def verdict(self, verdict: Verdict) -> None:
        if not self._closed:
            self._verdicts.append(verdict)
            self._woken.set()

    def close(self) -> None:
        """Makes `run` return after the step at hand, behind which the stream is closed. Waits for
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
        while self._verdicts:
            self._hear(self._verdicts.popleft())
        if (draft := self._due()) is not None:
            return await self._send_draft(draft)
        if self._may_draft():
            await self._draft_one()
        else:
            self._woken.clear()
            await self._woken.wait()
        return True

    def _hear(self, verdict: Verdict) -> None:
        if verdict.base_bytes != self._window.committed_bytes:
            raise InternalError(
                f"A verdict begins at byte {verdict.base_bytes}, but "
                f"{self._window.committed_bytes} are committed. Report this as a bug.",
                reason="VERDICT_OUT_OF_ORDER",
            )
        self._credit = verdict.credit_pieces
        self._measure_round(verdict)
        holds = self._window.commit(verdict.text)
        if not holds:
            self._waiting_since = None
        if holds and verdict.draft_seq == self._window.last_seq:
            self._window.resend_beyond(verdict.held_bytes)
        if verdict.text:
            used_up = self._stream.idle and not self._window.num_pieces
            self._stream.commit(verdict.text, restart=used_up or not holds)
        # The verifier goes on with what it holds; whatever reaches it before it plans its step
        # still counts.
        self._flush = self._window.unsent and self._window.num_sent > 0

    def _measure_round(self, verdict: Verdict) -> None:
        if self._waiting_since is not None and verdict.draft_seq >= self._waiting_since[0]:
            self._policy.answered((time.perf_counter() - self._waiting_since[1]) * 1e3)
            self._waiting_since = None

    def _due(self) -> Draft | None:
        """What to send now, if anything."""
        if self._credit is None:
            return None
        if not self._window.unsent:
            return self._window.nothing() if self._has_nothing_to_say() else None
        if self._flush or not self._may_draft() or self._group_is_ready():
            return self._window.take(self._credit)
        return None

    def _has_nothing_to_say(self) -> bool:
        """Once for each text: a verifier that waits must hear that it waits in vain."""
        silent = self._stream.idle and not self._window.num_pieces and not self._window.ends
        if not silent or not self._credit or self._silent_at == self._window.committed_bytes:
            return False
        self._silent_at = self._window.committed_bytes
        return True

    def _group_is_ready(self) -> bool:
        window = self._window
        if window.num_sent:
            return window.num_pieces - window.num_sent >= AHEAD_PIECES
        return self._policy.group_is_ready(window.num_pieces, window.expected, window.reach)

    def _may_draft(self) -> bool:
        limit = self._max_draft if self._credit is None else min(self._max_draft, self._credit)
        return (
            not self._stream.idle
            and not self._window.ends
            and self._window.num_pieces < limit
            and self._window.reach >= _MIN_REACH
        )

    async def _draft_one(self) -> None:
        piece, step_ms = await self._worker.run(self._stream.step)
        self.draft_ms += step_ms
        if piece is not None:
            self._window.push(piece)
            self._policy.drafted(step_ms)

    async def _send_draft(self, draft: Draft) -> bool:
        self._flush = False
        if self._waiting_since is None and draft.pieces:
            self._waiting_since = draft.seq, time.perf_counter()
        self.sent_pieces += len(draft.pieces)
        return await self._send(draft)
