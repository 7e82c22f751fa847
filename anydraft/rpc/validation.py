"""What a request may ask for. Runs in the SDK before dialling and again on every node."""

from __future__ import annotations

import math
from collections.abc import Callable

from anydraft.errors import InvalidFieldError
from anydraft.v1.prompt_pb2 import GenerationSpec, Prompt, SamplingParams, StopConditions

MAX_TEMPERATURE = 100.0
MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256


def validate_spec(spec: GenerationSpec) -> None:
    """Raises InvalidFieldError for the first field that is missing or out of range."""
    _validate_prompt(spec.prompt)
    _validate_sampling(spec.sampling)
    _validate_stop(spec.stop)
    if spec.HasField("logprobs") and spec.logprobs > MAX_LOGPROBS:
        raise _out_of_range("logprobs", spec.logprobs, f"at most {MAX_LOGPROBS}")


def _validate_prompt(prompt: Prompt) -> None:
    kind = prompt.WhichOneof("prompt")
    if kind is None:
        raise _missing("prompt", "give a text or chat messages")
    if kind == "text" and not prompt.text:
        raise _missing("prompt.text", "give at least one character")
    if kind == "messages":
        if not prompt.messages.messages:
            raise _missing("prompt.messages", "give at least one message")
        for index, message in enumerate(prompt.messages.messages):
            if not message.role:
                raise _missing(
                    f"prompt.messages[{index}].role", "give a role such as 'user' or 'system'"
                )


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
    for token_id, bias in sampling.logit_bias.items():
        if token_id < 0:
            raise _out_of_range("sampling.logit_bias", token_id, "token ids of 0 or more")
        if not -100 <= bias <= 100:
            raise _out_of_range(f"sampling.logit_bias[{token_id}]", bias, "in [-100, 100]")


def _validate_stop(stop: StopConditions) -> None:
    if stop.HasField("max_new_tokens") and stop.max_new_tokens < 1:
        raise _out_of_range("stop.max_new_tokens", stop.max_new_tokens, "at least 1")
    if len(stop.stop) > MAX_STOP_STRINGS:
        raise _out_of_range("stop.stop", f"{len(stop.stop)} strings", f"at most {MAX_STOP_STRINGS}")
    for index, text in enumerate(stop.stop):
        length = len(text.encode())
        if not 1 <= length <= MAX_STOP_BYTES:
            allowed = f"between 1 and {MAX_STOP_BYTES} bytes long"
            raise _out_of_range(f"stop.stop[{index}]", f"{length} bytes", allowed)


def _missing(field: str, fix: str) -> InvalidFieldError:
    return InvalidFieldError(f"{field} is empty: {fix}", field=field, reason="FIELD_MISSING")


def _out_of_range(field: str, value: object, allowed: str) -> InvalidFieldError:
    shown = f"{value:.7g}" if isinstance(value, float) else str(value)
    return InvalidFieldError(
        f"{field} is {shown}: it must be {allowed}", field=field, reason="FIELD_OUT_OF_RANGE"
    )
