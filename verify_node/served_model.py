"""The model that a verify node serves: opens sessions for requests, text in, blocks out."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from transformers import GenerationConfig

from anydraft.errors import ContextFullError, FailedPreconditionError, InvalidRequestError
from anydraft.rpc.validation import validate_resume, validate_spec
from anydraft.text.alignment import DraftAligner
from anydraft.text.lookup import PromptLookup, prompt_parts
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.prompt_pb2 import GenerationSpec
from anydraft.v1.result_pb2 import Resume
from verify_node.answer_cut import AnswerCutter, AnswerLimits
from verify_node.generation_defaults import GenerationDefaults
from verify_node.loop_calls import LoopCalls
from verify_node.sampling_settings import SamplingSettings
from verify_node.session_text import Admitted, Begun, SessionEvent, SessionText, TextBlock
from verify_node.target import FinishReason, Offer, Target, TargetRequest, TargetSession

_PROMPT_THREADS = 2
"""A prompt takes a while to render and encode; a small one should not wait for a large one."""
_ALIGNMENT_REST = 2.0
"""How long the thread of the alignments rests, in what an alignment took: the target's thread needs
the interpreter as well. What a session is sent meanwhile is aligned together."""


@dataclass(frozen=True, slots=True)
class PreparedAnswer:
    """A request that was checked, encoded and resolved: ready to be given to the target."""

    request: TargetRequest
    limits: AnswerLimits
    begun: Begun
    lookup: PromptLookup | None
    """Of its own; None when the target is to answer alone."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    text: SessionText
    target: TargetSession


class ServedModel:
    """Knows nothing of gRPC beyond the request message. Close it to stop the target."""

    def __init__(
        self,
        name: str,
        target: Target,
        tokenizer: TextTokenizer,
        defaults: GenerationConfig,
        context_tokens: int,
    ) -> None:
        self.name = name
        self.target = target
        self.tokenizer = tokenizer
        self.context_tokens = context_tokens
        self._defaults = GenerationDefaults.read(defaults)
        self.loop_calls = LoopCalls()
        """By which sessions tell event loops what the target committed."""
        self._aligner = DraftAligner(tokenizer)
        self._prompts = ThreadPoolExecutor(_PROMPT_THREADS, thread_name_prefix="prompts")
        # One: the offers of a session must come in the order of its drafts.
        self._alignments = ThreadPoolExecutor(1, thread_name_prefix="alignment")

    async def prepare(
        self,
        spec: GenerationSpec,
        *,
        resume: Resume | None = None,
        expects_drafts: bool,
        drafts_in_turn: bool = False,
    ) -> PreparedAnswer:
        """Checks the request, and encodes its prompt off the event loop. Opens nothing, so it may
        be cancelled at any time. `resume`: where the answer was begun elsewhere.

        Raises InvalidRequestError, FailedPreconditionError (another model is asked for, or the
        answer was begun by one that may answer otherwise), ContextFullError (the prompt does not
        fit).
        """
        validate_spec(spec)
        if resume is not None:
            validate_resume(resume, spec)
            self._check_fingerprint(resume.fingerprint)
        self._check_model(spec.model)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._prompts, self._prepare, spec, resume, expects_drafts, drafts_in_turn
        )

    def open(
        self, prepared: PreparedAnswer, on_event: Callable[[SessionEvent], None]
    ) -> OpenSession:
        """Starts an answer; returns at once, and whatever happens next is told to `on_event`, on
        the target's thread: first that there is room, then each block. An error ends it."""
        texts: list[SessionText] = []

        def listen(session: TargetSession) -> SessionText:
            text = SessionText(
                self._aligner,
                prepared.request.prompt_ids,
                prepared.limits,
                prepared.begun,
                prepared.lookup,
                session,
                on_event,
                self._align_aside,
            )
            texts.append(text)
            return text

        if prepared.begun.finish_reason is not None:
            session: TargetSession = _Over()
            text = listen(session)
            on_event(Admitted())
            on_event(_nothing_more(text, prepared.begun.finish_reason))
            return OpenSession(text, session)
        session = self.target.open(prepared.request, listen)
        return OpenSession(texts[0], session)

    def close(self) -> None:
        """Ends all sessions, and waits for the target's thread. Idempotent."""
        self.target.close()
        for threads in (self._prompts, self._alignments):
            threads.shutdown(wait=False, cancel_futures=True)

    def _align_aside(self, align: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile: nobody needs the draft
            self._alignments.submit(_and_rest, align)

    def _prepare(
        self,
        spec: GenerationSpec,
        resume: Resume | None,
        expects_drafts: bool,
        drafts_in_turn: bool,
    ) -> PreparedAnswer:
        prompt_ids = tuple(self.tokenizer.encode_prompt(spec.prompt))
        self._check_prompt(prompt_ids)
        max_new_tokens = self._max_new_tokens(spec, len(prompt_ids))
        sampling = SamplingSettings.resolve(
            spec.sampling, self._defaults, len(prompt_ids), max_new_tokens
        )
        self._check_bias(sampling)
        eos_ids = () if spec.stop.ignore_eos else self._defaults.eos_ids
        # The model's own stop strings end a turn as its ids do, whatever else the request stops at.
        own_stops = () if spec.stop.ignore_eos else self._defaults.stop_strings
        limits = AnswerLimits(
            max_new_tokens=max_new_tokens,
            eos_ids=frozenset(eos_ids),
            end_id=eos_ids[0] if eos_ids else None,
            stops=(*spec.stop.stop, *own_stops),
        )
        begun = self._begun(limits, () if resume is None else tuple(resume.token_ids))
        request = TargetRequest(
            prompt_ids=prompt_ids,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            eos_ids=self._defaults.eos_ids,
            num_logprobs=spec.logprobs if spec.HasField("logprobs") else None,
            expects_drafts=expects_drafts,
            drafts_in_turn=drafts_in_turn,
            committed_ids=begun.token_ids,
        )
        lookup = PromptLookup(prompt_parts(spec.prompt)) if expects_drafts else None
        return PreparedAnswer(request, limits, begun, lookup)

    def _begun(self, limits: AnswerLimits, token_ids: tuple[int, ...]) -> Begun:
        """Raises InvalidRequestError when this answer does not begin with these ids."""
        cutter = AnswerCutter(self.tokenizer, limits)
        if not token_ids:
            return Begun(cutter)
        size = self.target.facts.vocabulary_size
        if not 0 <= min(token_ids) <= max(token_ids) < size:
            raise _not_resumable(f"ids of this model run from 0 to {size - 1}")
        cut = cutter.cut(token_ids)
        if cut.num_tokens < len(token_ids):
            raise _not_resumable(f"the answer ends with the first {cut.num_tokens} of them")
        return Begun(cutter, token_ids, "".join(cut.texts), cut.reason)

    def _check_fingerprint(self, asked: str) -> None:
        if asked != self.target.facts.fingerprint:
            raise FailedPreconditionError(
                "the answer was begun by other weights, another precision or another engine, and "
                "would not go on as it was begun. Ask a node with the same fingerprint, or ask "
                "anew.",
                reason="FINGERPRINT_MISMATCH",
            )

    def _check_model(self, asked: str) -> None:
        if asked and asked != self.name:
            raise FailedPreconditionError(
                f"this node serves {self.name!r}, not {asked!r}. Ask for that model, leave the "
                "model empty, or connect to another node.",
                reason="MODEL_NOT_SERVED",
            )

    def _check_prompt(self, prompt_ids: Sequence[int]) -> None:
        if not prompt_ids:
            raise InvalidRequestError(
                "the prompt is empty for this model's tokenizer. Give it some text.",
                reason="PROMPT_EMPTY",
            )
        # Some tokenizers have added tokens that their model has no embedding for.
        rows = self.target.facts.vocabulary_size
        if unknown := [token_id for token_id in prompt_ids if token_id >= rows]:
            text = self.tokenizer.token_bytes(unknown[0]).decode(errors="replace")
            raise InvalidRequestError(
                f"the prompt contains the special token {text!r}, which this model does not know. "
                "Leave it out.",
                reason="PROMPT_TOKEN_UNKNOWN",
            )

    def _max_new_tokens(self, spec: GenerationSpec, prompt_tokens: int) -> int:
        left = self.context_tokens - prompt_tokens
        if left < 1:
            raise ContextFullError(
                f"the prompt has {prompt_tokens} tokens, and this model's context holds "
                f"{self.context_tokens} for prompt and answer together. Shorten the prompt.",
                reason="PROMPT_TOO_LONG",
            )
        if spec.stop.HasField("max_new_tokens"):
            return min(spec.stop.max_new_tokens, left)
        default = self._defaults.max_new_tokens_after(prompt_tokens)
        if default is not None and default < 1:
            raise ContextFullError(
                f"the prompt has {prompt_tokens} tokens, and this model's generation_config leaves "
                "no room for an answer behind it. Say max_new_tokens in the request.",
                reason="PROMPT_TOO_LONG",
            )
        return left if default is None else min(default, left)

    def _check_bias(self, sampling: SamplingSettings) -> None:
        size = self.target.facts.vocabulary_size
        token_id = max(sampling.logit_bias, default=0)
        if token_id >= size:
            raise InvalidRequestError(
                f"sampling.logit_bias names id {token_id}, but this model's ids run from 0 to "
                f"{size - 1}. Use ids of the target's vocabulary.",
                reason="LOGIT_BIAS_OUT_OF_VOCABULARY",
            )


class _Over:
    """The `TargetSession` of an answer that needs no target any more."""

    def offer(self, offer: Offer) -> None:
        pass

    def decline(self, num_committed: int, needs_ms: float = 0.0) -> None:
        pass

    def expect_drafts(self, expected: bool) -> None:
        pass

    def close(self) -> None:
        pass


def _nothing_more(text: SessionText, reason: FinishReason) -> TextBlock:
    return TextBlock(
        newest_piece=0,
        base_bytes=text.committed_bytes,
        text="",
        user_text="",
        token_ids=(),
        drafted_bytes=0,
        logprobs=[],
        credit_pieces=0,
        turn_ms=0.0,
        step_ms=0.0,
        finished=text.finished(reason),
    )


def _not_resumable(why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"resume.token_ids are no beginning of this answer: {why}. Send the ids that were "
        "committed for the same request, all of them and no more.",
        reason="RESUME_INVALID",
    )


def _and_rest(align: Callable[[], None]) -> None:
    started = time.thread_time()
    align()
    time.sleep(_ALIGNMENT_REST * (time.thread_time() - started))
