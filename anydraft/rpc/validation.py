"""What a request may ask for. Runs in the SDK before dialling and again on every node.

A stranger decides how much there is of everything, so amounts are looked at before anything is
looped over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from anydraft.errors import InvalidFieldError
from anydraft.v1.drafting_pb2 import Commit, OpenDrafting
from anydraft.v1.prompt_pb2 import (
    ChatMessage,
    GenerationSpec,
    Prompt,
    SamplingParams,
    StopConditions,
)
from anydraft.v1.result_pb2 import Resume
from anydraft.v1.verification_pb2 import Draft

MAX_PROMPT_BYTES = 1024 * 1024
"""UTF-8 bytes of the text, or of all messages: some 250,000 tokens of English."""
MAX_ANSWER_BYTES = 2 * 1024 * 1024
"""Of an answer that others make: beyond any context, and less than a message holds."""
MAX_MESSAGES = 4096
MAX_ROLE_BYTES = 64
MAX_NAME_BYTES = 1024
"""Of a model or a session."""
MAX_TEMPERATURE = 100.0
MAX_LOGPROBS = 20
MAX_LOGIT_BIASES = 1024
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
MAX_DRAFT_PIECES = 4096
"""Of one draft: far beyond any credit. The bytes of a draft are bounded as those of any message."""


def validate_spec(spec: GenerationSpec) -> None:
    """Raises InvalidFieldError for the first field that is missing or out of range."""
    _require_short("model", spec.model, MAX_NAME_BYTES)
    validate_prompt(spec.prompt)
    _validate_sampling(spec.sampling)
    _validate_stop(spec.stop)
    if spec.HasField("logprobs") and spec.logprobs > MAX_LOGPROBS:
        raise _out_of_range("logprobs", spec.logprobs, f"at most {MAX_LOGPROBS}")


def validate_session_id(session_id: str) -> None:
    """Raises InvalidFieldError when it is too long; empty lets the server choose."""
    _require_short("session_id", session_id, MAX_NAME_BYTES)


def validate_resume(resume: Resume, spec: GenerationSpec) -> None:
    """Raises InvalidFieldError for what no answer can go on from. `spec` is the request's."""
    if not resume.fingerprint:
        raise _missing("resume.fingerprint", "send Opened.fingerprint of the answer's beginning")
    if not spec.sampling.HasField("seed"):
        raise _missing("sampling.seed", "an answer that goes on needs the seed in Opened.seed")
    if not spec.stop.HasField("max_new_tokens"):
        raise _missing("stop.max_new_tokens", "send the limit that Opened.max_new_tokens named")


def validate_draft(draft: Draft) -> None:
    """Raises InvalidFieldError for a draft that is not worth looking at, before anything looks.

    No client that heeds its credit comes near; text that contradicts is another matter (stale).
    """
    if len(draft.pieces) > MAX_DRAFT_PIECES:
        raise _too_many("draft.pieces", len(draft.pieces), "pieces", MAX_DRAFT_PIECES)
    if not 0 <= draft.needs_ms < math.inf:
        raise _out_of_range("draft.needs_ms", draft.needs_ms, "finite and 0 or more")


def validate_drafting(opening: OpenDrafting) -> None:
    """Raises InvalidFieldError for the first field that is missing or out of range."""
    validate_prompt(opening.prompt)
    _require_short("open.committed_text", opening.committed_text, MAX_ANSWER_BYTES)
    _require_short("open.tenant", opening.tenant, MAX_NAME_BYTES)


def validate_commit(commit: Commit, committed_bytes: int) -> None:
    """Raises InvalidFieldError unless it goes on where `committed_bytes` of an answer stand."""
    if commit.base_bytes != committed_bytes:
        allowed = f"{committed_bytes}, where the text before it ends"
        raise _out_of_range("commit.base_bytes", commit.base_bytes, allowed)
    if committed_bytes + len(commit.text.encode()) > MAX_ANSWER_BYTES:
        raise _too_many("the answer", MAX_ANSWER_BYTES + 1, "bytes", MAX_ANSWER_BYTES)
    if not 0 <= commit.turn_ms < math.inf:
        raise _out_of_range("commit.turn_ms", commit.turn_ms, "finite and 0 or more")


def validate_prompt(prompt: Prompt) -> None:
    """Raises InvalidFieldError when it is empty or too large."""
    match prompt.WhichOneof("prompt"):
        case None:
            raise _missing("prompt", "give a text or chat messages")
        case "text":
            if not prompt.text:
                raise _missing("prompt.text", "give at least one character")
            _require_short("prompt.text", prompt.text, MAX_PROMPT_BYTES)
        case "messages":
            _validate_messages(prompt.messages.messages)


def _validate_messages(messages: Sequence[ChatMessage]) -> None:
    if not messages:
        raise _missing("prompt.messages", "give at least one message")
    if len(messages) > MAX_MESSAGES:
        raise _too_many("prompt.messages", len(messages), "messages", MAX_MESSAGES)
    num_bytes = 0
    for index, message in enumerate(messages):
        field = f"prompt.messages[{index}].role"
        if not message.role:
            raise _missing(field, "give a role such as 'user' or 'system'")
        _require_short(field, message.role, MAX_ROLE_BYTES)
        num_bytes += len(message.content.encode())
    if num_bytes > MAX_PROMPT_BYTES:
        raise _too_many("prompt.messages", num_bytes, "bytes", MAX_PROMPT_BYTES)


_SAMPLING_RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda v: 0 <= v <= MAX_TEMPERATURE, f"in [0, {MAX_TEMPERATURE:g}]"),
    "top_p": (lambda v: 0 < v <= 1, "in (0, 1]"),
    "min_p": (lambda v: 0 <= v <= 1, "in [0, 1]"),
    "repetition_penalty": (lambda v: 0 < v < math.inf, "above 0 and finite"),
    "presence_penalty": (lambda v: -2 <= v <= 2, "in [-2, 2]"),
    "frequency_penalty": (lambda v: -2 <= v <= 2, "in [-2, 2]"),
}


def _validate_sampling(sampling: SamplingParams) -> None:
    for field, value in sampling.ListFields():
        if field.name in _SAMPLING_RANGES:
            # NaN fails every comparison, so it is never in range.
            is_in_range, allowed = _SAMPLING_RANGES[field.name]
            if not is_in_range(value):
                raise _out_of_range(f"sampling.{field.name}", value, allowed)
    if len(sampling.logit_bias) > MAX_LOGIT_BIASES:
        raise _too_many(
            "sampling.logit_bias", len(sampling.logit_bias), "entries", MAX_LOGIT_BIASES
        )
    for token_id, bias in sampling.logit_bias.items():
        if token_id < 0:
            raise _out_of_range("sampling.logit_bias", token_id, "token ids of 0 or more")
        if not -100 <= bias <= 100:
            raise _out_of_range(f"sampling.logit_bias[{token_id}]", bias, "in [-100, 100]")


def _validate_stop(stop: StopConditions) -> None:
    if stop.HasField("max_new_tokens") and stop.max_new_tokens < 1:
        raise _out_of_range("stop.max_new_tokens", stop.max_new_tokens, "at least 1")
    if len(stop.stop) > MAX_STOP_STRINGS:
        raise _too_many("stop.stop", len(stop.stop), "strings", MAX_STOP_STRINGS)
    for index, text in enumerate(stop.stop):
        length = len(text.encode())
        if not 1 <= length <= MAX_STOP_BYTES:
            allowed = f"between 1 and {MAX_STOP_BYTES} bytes long"
            raise _out_of_range(f"stop.stop[{index}]", f"{length} bytes", allowed)


def _require_short(field: str, text: str, max_bytes: int) -> None:
    num_bytes = len(text.encode())
    if num_bytes > max_bytes:
        raise _too_many(field, num_bytes, "bytes", max_bytes)


def _too_many(field: str, count: int, unit: str, most: int) -> InvalidFieldError:
    return _out_of_range(field, f"{count} {unit} long", f"at most {most}")


def _missing(field: str, fix: str) -> InvalidFieldError:
    return InvalidFieldError(f"{field} is empty: {fix}", field=field, reason="FIELD_MISSING")


def _out_of_range(field: str, value: object, allowed: str) -> InvalidFieldError:
    shown = f"{value:.7g}" if isinstance(value, float) else str(value)
    return InvalidFieldError(
        f"{field} is {shown}: it must be {allowed}", field=field, reason="FIELD_OUT_OF_RANGE"
    )
