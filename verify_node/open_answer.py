"""One open session as seen from the event loop: what it says, in order, and always closed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from anydraft.errors import AnydraftError
from anydraft.rpc.answer_log import CANCELLED, CLOSED, AnswerLog, error_word, finish_word
from anydraft.v1.prompt_pb2 import GenerationSpec
from anydraft.v1.result_pb2 import Opened, Resume
from anydraft.v1.verification_pb2 import Draft
from verify_node.served_model import PreparedAnswer, ServedModel
from verify_node.session_draft import MAX_CREDIT_BYTES, MAX_CREDIT_PIECES
from verify_node.session_text import Admitted, SessionEvent, TextBlock

# What ends the waiting for blocks from this side.
_LEFT = None


class Draining:
    """The node is going away; the answer goes on for a while."""


_DRAFTS_PER_BLOCK = 64
"""Messages that a client may send between two blocks. No client that heeds its credit sends as
many; the others wait in gRPC's flow control, at their own expense."""


class OpenAnswer:
    """Starts its session when it is made; `close` ends it. Belongs to one event loop."""

    def __init__(self, model: ServedModel, prepared: PreparedAnswer, session_id: str) -> None:
        self._model = model
        self._prepared = prepared
        self._session_id = session_id
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[SessionEvent | Draining | None] = asyncio.Queue()
        self._drafts_left = _DRAFTS_PER_BLOCK
        self._block_came = asyncio.Event()
        self.how_it_ended = CANCELLED
        self.session = model.open(prepared, self._hear)

    def _hear(self, event: SessionEvent) -> None:
        """On the target's thread."""
        self._model.loop_calls.call(self._loop, partial(self._take, event))

    def _take(self, event: SessionEvent) -> None:
        self._events.put_nowait(event)
        self._drafts_left = _DRAFTS_PER_BLOCK
        self._block_came.set()

    async def draft(self, draft: Draft) -> None:
        """Hands a draft to the session; waits for the next block when there were too many."""
        while not self._drafts_left:
            self._block_came.clear()
            await self._block_came.wait()
        self._drafts_left -= 1
        self.session.text.draft(draft)

    async def admitted(self) -> None:
        """Returns when there is room; raises ResourceExhaustedError when there is none."""
        event = await self._events.get()
        if isinstance(event, AnydraftError):
            raise event
        if not isinstance(event, Admitted):
            raise TypeError(f"{event!r} before the session was admitted")

    def opened(self) -> Opened:
        request = self._prepared.request
        return Opened(
            session_id=self._session_id,
            model=self._model.name,
            seed=request.sampling.seed,
            prompt_tokens=len(request.prompt_ids),
            max_new_tokens=request.max_new_tokens,
            credit_pieces=MAX_CREDIT_PIECES if request.expects_drafts else 0,
            credit_bytes=MAX_CREDIT_BYTES if request.expects_drafts else 0,
            fingerprint=self._model.target.facts.fingerprint,
            committed_text=self._prepared.begun.text,
        )

    async def blocks(self) -> AsyncIterator[TextBlock | Draining]:
        """Until the answer is finished or left; raises what ended it otherwise."""
        while (event := await self._events.get()) is not _LEFT:
            if isinstance(event, AnydraftError):
                raise event
            if isinstance(event, Admitted):
                continue
            if isinstance(event, Draining):
                yield event
                continue
            if event.finished is not None:
                self.how_it_ended = finish_word(event.finished.reason)
            yield event
            if event.finished is not None:
                return

    @property
    def begun_text(self) -> str:
        """Of an answer that was begun elsewhere."""
        return self._prepared.begun.text

    def drain(self) -> None:
        """Tells whoever reads `blocks` that the node is going away."""
        self._events.put_nowait(Draining())

    def leave(self, error: AnydraftError | None = None) -> None:
        """Ends `blocks` without an answer: the client said so, or did something wrong."""
        if error is None:
            self.how_it_ended = CLOSED
        self._events.put_nowait(error)

    def close(self) -> None:
        """Frees everything. Idempotent."""
        self.session.target.close()


@asynccontextmanager
async def open_answer(
    model: ServedModel,
    spec: GenerationSpec,
    session_id: str,
    *,
    resume: Resume | None = None,
    expects_drafts: bool,
    drafts_in_turn: bool = False,
) -> AsyncIterator[OpenAnswer]:
    """An answer that the target has room for; `resume`: that was begun elsewhere. Raises what
    `ServedModel.prepare` and `OpenAnswer.admitted` raise; nothing is left behind, wherever it is
    cancelled."""
    log = AnswerLog()
    how = CANCELLED
    answer: OpenAnswer | None = None
    try:
        prepared = await model.prepare(
            spec, resume=resume, expects_drafts=expects_drafts, drafts_in_turn=drafts_in_turn
        )
        answer = OpenAnswer(model, prepared, session_id)
        await answer.admitted()
        log.session_id, log.stats = session_id, answer.session.text.stats
        yield answer
        how = answer.how_it_ended
    except (asyncio.CancelledError, GeneratorExit):
        how = CANCELLED if answer is None else answer.how_it_ended
        raise
    except BaseException as error:
        how = error_word(error)
        raise
    finally:
        if answer is not None:
            answer.close()
        if log.stats is not None:
            log.num_tokens = log.stats.completion_tokens
        log.end(how)
