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
from anydraft.rpc.validation import validate_spec
from anydraft.text.alignment import DraftAligner
from anydraft.text.lookup import PromptLookup, prompt_parts
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.prompt_pb2 import GenerationSpec
from verify_node.generation_defaults import GenerationDefaults
from verify_node.loop_calls import LoopCalls
from verify_node.sampling_settings import SamplingSettings
from verify_node.session_text import AnswerLimits, SessionEvent, SessionText
from verify_node.target import Target, TargetRequest, TargetSession

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
        self, spec: GenerationSpec, *, expects_drafts: bool, drafts_in_turn: bool = False
    ) -> PreparedAnswer:
        """Checks the request, and encodes its prompt off the event loop. Opens nothing, so it may
        be cancelled at any time.

        Raises InvalidRequestError, FailedPreconditionError (another model is asked for),
        ContextFullError (the prompt does not fit).
        """
        validate_spec(spec)
        self._check_model(spec.model)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._prompts, self._prepare, spec, expects_drafts, drafts_in_turn
        )

    def open(
        self, prepared: PreparedAnswer, on_event: Callable[[SessionEvent], None]
    ) -> OpenSession:
        """Starts an answer; returns at once, and whatever happens next is told to `on_event`, on
        the target's thread: first that there is room, then each block. An error ends it."""
        texts: list[SessionText] = []

        def listen(session: TargetSession) -> SessionText:
            text = SessionText(
                self.tokenizer,
                self._aligner,
                prepared.request.prompt_ids,
                prepared.limits,
                prepared.lookup,
                session,
                on_event,
                self._align_aside,
            )
            texts.append(text)
            return text

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
        self, spec: GenerationSpec, expects_drafts: bool, drafts_in_turn: bool
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
        request = TargetRequest(
            prompt_ids=prompt_ids,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            eos_ids=self._defaults.eos_ids,
            num_logprobs=spec.logprobs if spec.HasField("logprobs") else None,
            expects_drafts=expects_drafts,
            drafts_in_turn=drafts_in_turn,
        )
        lookup = PromptLookup(prompt_parts(spec.prompt)) if expects_drafts else None
        return PreparedAnswer(request, limits, lookup)

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


def _and_rest(align: Callable[[], None]) -> None:
    started = time.thread_time()
    align()
    time.sleep(_ALIGNMENT_REST * (time.thread_time() - started))
