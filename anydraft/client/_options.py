"""What a caller may ask for, and the request that it becomes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypedDict

from google.protobuf.message import Message

from anydraft.errors import InvalidFieldError, InvalidRequestError
from anydraft.rpc.validation import MAX_LOGIT_BIASES, MAX_MESSAGES, validate_spec
from anydraft.v1.generation_pb2 import GenerateRequest
from anydraft.v1.prompt_pb2 import GenerationSpec

Messages = Sequence[Mapping[str, Any]]
"""Chat messages: {"role": ..., "content": ...}, the content a text or a list of text parts,
{"type": "text", "text": ...}, which are joined."""


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of `generate`. What is left out, or None, is the target's own default."""

    max_new_tokens: int | None
    """At least 1; by default the model's limit, or what its context leaves."""
    temperature: float | None
    """In [0, 100]; 0 always takes the likeliest token."""
    top_k: int | None
    """Sample among this many likeliest tokens; 0 keeps every token."""
    top_p: float | None
    """In (0, 1]: sample among the likeliest tokens that hold this much probability."""
    min_p: float | None
    """In [0, 1]: leave out tokens below this share of the likeliest token's probability."""
    repetition_penalty: float | None
    """Above 0, 1 is none; counts prompt and answer."""
    presence_penalty: float | None
    """In [-2, 2]; counts the answer only."""
    frequency_penalty: float | None
    """In [-2, 2]; counts the answer only."""
    logit_bias: Mapping[int, float] | None
    """Added to the logits of these target ids; in [-100, 100], at most 1024 of them."""
    seed: int | None
    """Same seed, same answer; by default the server picks one and the result names it."""
    stop: str | Sequence[str] | None
    """The answer ends before the first of these; at most 16, of at most 256 bytes."""
    ignore_eos: bool
    """Go on past the model's end of sequence."""
    logprobs: int | None
    """Log-probabilities of every token, with this many alternatives (0 to 20)."""
    model: str | None
    """Refuse to be answered by another model than this one."""


_SHOWN_CHARS = 100
"""How much of a faulty value a message shows; a prompt may be long."""

_SAMPLING_FIELDS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)


def build_request(
    prompt: str | None, messages: Messages | None, options: GenerateOptions
) -> GenerateRequest:
    """The validated request. Raises InvalidRequestError, TypeError for an unknown option."""
    if unknown := set(options) - GenerateOptions.__annotations__.keys():
        raise TypeError(f"generate() got an unexpected keyword argument {min(unknown)!r}")
    request = GenerateRequest()
    _set_prompt(request.spec, prompt, messages)
    _set_sampling(request.spec, options)
    _set_stop(request.spec, options)
    _assign(request.spec, "logprobs", options.get("logprobs"))
    _assign(request.spec, "model", options.get("model"))
    validate_spec(request.spec)
    return request


def _set_prompt(spec: GenerationSpec, prompt: str | None, messages: Messages | None) -> None:
    if (prompt is None) == (messages is None):
        raise InvalidRequestError(
            "give either a prompt or messages, and not both", reason="FIELD_MISSING"
        )
    if prompt is not None:
        if not isinstance(prompt, str):
            raise _invalid("prompt", prompt, "text; chat messages go into messages=")
        _assign(spec.prompt, "text", prompt, "prompt")
    if messages is not None:
        _set_messages(spec, messages)


def _set_messages(spec: GenerationSpec, messages: Messages) -> None:
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes | Mapping):
        raise _invalid("messages", messages, "a list of {'role': ..., 'content': ...}")
    spec.prompt.messages.SetInParent()
    for index, message in enumerate(messages):
        added = spec.prompt.messages.messages.add()
        if index >= MAX_MESSAGES:
            return  # one too many, for `validate_spec` to say so
        field = f"messages[{index}]"
        _require_keys(field, message)
        _assign(added, "role", message["role"], f"{field}.role")
        content = _text_of(message["content"], f"{field}.content")
        _assign(added, "content", content, f"{field}.content")


def _require_keys(field: str, message: Mapping[str, Any]) -> None:
    needed = {"role", "content"}
    if not isinstance(message, Mapping) or not needed <= message.keys():
        raise _invalid(field, message, "{'role': ..., 'content': ...}")
    if extra := sorted(map(str, message.keys() - needed)):
        raise InvalidFieldError(
            f"{field} has more than a role and a content ({', '.join(extra)}), which models are "
            "not shown: leave it out, or write it into the content",
            field=field,
            reason="FIELD_MALFORMED",
        )


def _text_of(content: object, field: str) -> str:
    """The text itself, or that of its parts, joined as they are."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise _invalid(field, content, "text, or a list of {'type': 'text', 'text': ...}")
    return "".join(_text_of_part(part, f"{field}[{index}]") for index, part in enumerate(content))


def _text_of_part(part: object, field: str) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)} if kind != "text":
            raise InvalidFieldError(
                f"{field} is of type {kind!r}, and models here read text only: leave it out, or "
                "describe it in a part {'type': 'text', 'text': ...}",
                field=field,
                reason="FIELD_MALFORMED",
            )
    raise _invalid(field, part, "{'type': 'text', 'text': ...}")


def _set_sampling(spec: GenerationSpec, options: GenerateOptions) -> None:
    given: Mapping[str, Any] = options
    for name in _SAMPLING_FIELDS:
        _assign(spec.sampling, name, given.get(name))
    biases = options.get("logit_bias") or {}
    if not isinstance(biases, Mapping):
        raise _invalid("logit_bias", biases, "a mapping of token ids to numbers")
    for token_id, bias in islice(biases.items(), MAX_LOGIT_BIASES + 1):
        try:
            spec.sampling.logit_bias[token_id] = bias
        except (TypeError, ValueError):
            raise _invalid("logit_bias", {token_id: bias}, "token ids with numbers") from None


def _set_stop(spec: GenerationSpec, options: GenerateOptions) -> None:
    _assign(spec.stop, "max_new_tokens", options.get("max_new_tokens"))
    _assign(spec.stop, "ignore_eos", options.get("ignore_eos"))
    stop = options.get("stop")
    if stop is None:
        return
    try:
        spec.stop.stop.extend([stop] if isinstance(stop, str) else stop)
    except (TypeError, ValueError):
        raise _invalid("stop", stop, "a string or a sequence of strings") from None


_KINDS = {
    int: "a whole number of 0 or more",
    float: "a number",
    str: "valid Unicode text",
    bool: "True or False",
}


def _assign(message: Message, name: str, value: Any, field: str | None = None) -> None:
    """Sets a field unless `value` is None; what protobuf refuses becomes our own error."""
    if value is None:
        return
    try:
        setattr(message, name, value)
    except (TypeError, ValueError):
        kind = _KINDS[type(getattr(message, name))]
        raise _invalid(field or name, value, kind) from None


def _invalid(field: str, value: object, expected: str) -> InvalidFieldError:
    shown = repr(value)
    if len(shown) > _SHOWN_CHARS:
        shown = f"{shown[:_SHOWN_CHARS]}..."
    return InvalidFieldError(
        f"{field} is {shown}: it must be {expected}", field=field, reason="FIELD_MALFORMED"
    )
