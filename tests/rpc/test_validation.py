import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from anydraft.errors import InvalidFieldError, InvalidRequestError
from anydraft.rpc.validation import (
    MAX_DRAFT_PIECES,
    validate_draft,
    validate_session_id,
    validate_spec,
)
from anydraft.v1.prompt_pb2 import ChatMessage, ChatMessages, GenerationSpec, Prompt


def _spec() -> GenerationSpec:
    return GenerationSpec(prompt=Prompt(text="Hi"))


def _sampling(**fields: float) -> Callable[[GenerationSpec], None]:
    def change(spec: GenerationSpec) -> None:
        for name, value in fields.items():
            setattr(spec.sampling, name, value)

    return change


def _bias(token_id: int, bias: float) -> Callable[[GenerationSpec], None]:
    return lambda spec: spec.sampling.logit_bias.update({token_id: bias})


def _stop(*strings: str) -> Callable[[GenerationSpec], None]:
    return lambda spec: spec.stop.stop.extend(strings)


def _max_new_tokens(value: int) -> Callable[[GenerationSpec], None]:
    return lambda spec: setattr(spec.stop, "max_new_tokens", value)


def _logprobs(value: int) -> Callable[[GenerationSpec], None]:
    return lambda spec: setattr(spec, "logprobs", value)


def _model(name: str) -> Callable[[GenerationSpec], None]:
    return lambda spec: setattr(spec, "model", name)


def _text(text: str) -> Callable[[GenerationSpec], None]:
    return lambda spec: setattr(spec.prompt, "text", text)


def _messages(count: int, content: str = "", role: str = "user") -> Callable[[Any], None]:
    message = ChatMessage(role=role, content=content)
    return lambda spec: spec.prompt.messages.messages.extend([message] * count)


def _biases(count: int, bias: float = 1) -> Callable[[GenerationSpec], None]:
    return lambda spec: spec.sampling.logit_bias.update(dict.fromkeys(range(count), bias))


ALLOWED = [
    _sampling(),
    _sampling(temperature=0),
    _sampling(temperature=100),
    _sampling(top_p=1, min_p=0, top_k=0),
    _sampling(min_p=1, repetition_penalty=0.01, presence_penalty=-2, frequency_penalty=2),
    _bias(0, -100),
    _bias(5, 100),
    _stop(*["x" * 256] * 16),
    _stop("é" * 128),
    _max_new_tokens(1),
    _logprobs(0),
    _logprobs(20),
    _model("m" * 1024),
    _text("é" * 2**19),
    _messages(4096, "x" * 256, "r" * 64),
    _biases(1024),
]

REFUSED = [
    ("sampling.temperature", _sampling(temperature=-0.1)),
    ("sampling.temperature", _sampling(temperature=math.nan)),
    ("sampling.temperature", _sampling(temperature=math.inf)),
    ("sampling.temperature", _sampling(temperature=101)),
    ("sampling.top_p", _sampling(top_p=0)),
    ("sampling.top_p", _sampling(top_p=1.1)),
    ("sampling.top_p", _sampling(top_p=math.nan)),
    ("sampling.min_p", _sampling(min_p=-0.1)),
    ("sampling.min_p", _sampling(min_p=1.1)),
    ("sampling.repetition_penalty", _sampling(repetition_penalty=0)),
    ("sampling.repetition_penalty", _sampling(repetition_penalty=math.inf)),
    ("sampling.repetition_penalty", _sampling(repetition_penalty=math.nan)),
    ("sampling.presence_penalty", _sampling(presence_penalty=2.1)),
    ("sampling.presence_penalty", _sampling(presence_penalty=math.nan)),
    ("sampling.frequency_penalty", _sampling(frequency_penalty=-2.1)),
    ("sampling.logit_bias", _bias(-1, 0)),
    ("sampling.logit_bias[5]", _bias(5, 100.5)),
    ("sampling.logit_bias[5]", _bias(5, math.nan)),
    ("stop.max_new_tokens", _max_new_tokens(0)),
    ("stop.stop[1]", _stop("a", "")),
    ("stop.stop[0]", _stop("é" * 129)),
    ("stop.stop", _stop(*["a"] * 17)),
    ("model", _model("m" * 1025)),
    ("prompt.text", _text("é" * 2**19 + "x")),
    ("prompt.messages", _messages(1024, "x" * 1025)),
    ("prompt.messages[0].role", _messages(1, role="r" * 65)),
    # Amounts come first: here each single one is at fault as well.
    ("stop.stop", _stop(*[""] * 17)),
    ("prompt.messages", _messages(4097, role="")),
    ("sampling.logit_bias", _biases(1025, math.nan)),
    ("logprobs", _logprobs(21)),
    ("prompt", lambda spec: spec.ClearField("prompt")),
    ("prompt.text", lambda spec: spec.prompt.CopyFrom(Prompt(text=""))),
    ("prompt.messages", lambda spec: spec.prompt.CopyFrom(Prompt(messages=ChatMessages()))),
    (
        "prompt.messages[1].role",
        lambda spec: spec.prompt.messages.messages.extend(
            [ChatMessage(role="user"), ChatMessage(content="Hi")]
        ),
    ),
]


@pytest.mark.parametrize("change", ALLOWED)
def test_allowed(change: Callable[[GenerationSpec], None]) -> None:
    spec = _spec()
    change(spec)
    validate_spec(spec)


@pytest.mark.parametrize(("field", "change"), REFUSED)
def test_refused_by_name(field: str, change: Callable[[GenerationSpec], None]) -> None:
    spec = _spec()
    change(spec)
    with pytest.raises(InvalidFieldError) as caught:
        validate_spec(spec)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} is ")


class Untouchable:
    """A sequence that nobody may look into."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


def test_no_piece_of_a_draft_without_end_is_looked_at() -> None:
    draft: Any = SimpleNamespace(pieces=Untouchable(MAX_DRAFT_PIECES), needs_ms=0.0)
    validate_draft(draft)
    draft.pieces = Untouchable(MAX_DRAFT_PIECES + 1)
    with pytest.raises(InvalidFieldError, match="it must be at most 4096") as caught:
        validate_draft(draft)
    assert caught.value.field == "draft.pieces"


def test_session_ids_are_short() -> None:
    validate_session_id("")
    validate_session_id("s" * 1024)
    with pytest.raises(InvalidFieldError, match="session_id is 1025 bytes long"):
        validate_session_id("s" * 1025)


def test_the_message_names_value_and_range() -> None:
    spec = _spec()
    spec.sampling.top_p = 1.5
    with pytest.raises(
        InvalidRequestError, match=r"^sampling.top_p is 1.5: it must be in \(0, 1\]$"
    ):
        validate_spec(spec)


def test_whitespace_is_a_prompt_and_a_message_may_be_empty() -> None:
    validate_spec(GenerationSpec(prompt=Prompt(text=" \n")))
    messages = ChatMessages(messages=[ChatMessage(role="user")])
    validate_spec(GenerationSpec(prompt=Prompt(messages=messages)))
