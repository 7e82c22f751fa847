from itertools import repeat
from typing import Any

import pytest

from anydraft.client._options import build_request
from anydraft.errors import InvalidFieldError, InvalidRequestError

USER = {"role": "user", "content": "Hi"}


@pytest.mark.parametrize(
    ("option", "value", "shown"),
    [
        ("max_new_tokens", -1, "max_new_tokens is -1"),
        ("max_new_tokens", 1.5, "max_new_tokens is 1.5"),
        ("temperature", "hot", "temperature is 'hot'"),
        ("top_k", 2**40, "top_k is 1099511627776"),
        ("seed", -1, "seed is -1"),
        ("seed", 2**64, "seed is 18446744073709551616"),
        ("stop", [1], r"stop is \[1\]"),
        ("stop", 5, "stop is 5"),
        ("logit_bias", {"a": 1}, "logit_bias is {'a': 1}"),
        ("logit_bias", {1: None}, "logit_bias is {1: None}"),
        ("logit_bias", {2**40: 1}, "logit_bias is"),
        ("model", 3, "model is 3"),
        ("logprobs", -1, "logprobs is -1"),
        ("ignore_eos", "yes", "ignore_eos is 'yes'"),
    ],
)
def test_what_protobuf_cannot_hold_is_named(option: str, value: Any, shown: str) -> None:
    with pytest.raises(InvalidRequestError, match=shown):
        build_request("Hi", None, {option: value})  # type: ignore[misc]


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user"}],
        [{"role": "user", "content": "Hi", "name": "Ann"}],
        [{"role": "user", "content": ["Hi"]}],
        [{"role": None, "content": "Hi"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        [{"role": "user", "content": {"type": "text", "text": "Hi"}}],
        ["Hi"],
        [],
        "Hi",
        5,
        USER,
    ],
)
def test_malformed_messages(messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match="messages"):
        build_request(None, messages, {})


def test_text_parts_are_joined_as_they_are() -> None:
    parts = [{"type": "text", "text": "Hi, "}, {"type": "text", "text": "wörld"}]
    message = {"role": "user", "content": parts}
    request = build_request(None, [message, {"role": "user", "content": []}], {})
    contents = [message.content for message in request.spec.prompt.messages.messages]
    assert contents == ["Hi, wörld", ""]


def _refusal(prompt: Any, messages: Any, **options: Any) -> InvalidFieldError:
    with pytest.raises(InvalidFieldError) as caught:
        build_request(prompt, messages, options)  # type: ignore[arg-type]
    return caught.value


def test_parts_that_are_no_text_are_named() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:..."}}
    parts = [{"type": "text", "text": "What is this?"}, image]
    error = _refusal(None, [{"role": "user", "content": parts}])
    assert error.field == "messages[0].content[1]"
    assert "is of type 'image_url', and models here read text only: leave it out" in str(error)


def test_keys_that_no_model_sees_are_named() -> None:
    error = _refusal(None, [USER, {**USER, "tool_calls": [], "name": "Ann"}])
    assert error.field == "messages[1]"
    assert "(name, tool_calls)" in str(error)
    assert "leave it out" in str(error)


def test_messages_in_the_place_of_a_prompt() -> None:
    assert str(_refusal([USER], None)).endswith("it must be text; chat messages go into messages=")


def test_amounts_are_bounded_before_they_are_copied() -> None:
    """Endless ones, too."""
    assert _refusal(None, repeat(USER)).field == "prompt.messages"
    assert _refusal("Hi", None, logit_bias=dict.fromkeys(range(1025), 1)).field == (
        "sampling.logit_bias"
    )
    assert _refusal("x" * (2**20 + 1), None).field == "prompt.text"
    assert _refusal("Hi", None, logit_bias=[1]).field == "logit_bias"


def test_a_long_value_is_shown_in_part() -> None:
    error = _refusal("\ud800" * 100_000, None)
    assert len(str(error)) < 200
    assert str(error).endswith("...: it must be valid Unicode text")


def test_the_faulty_message_is_numbered() -> None:
    with pytest.raises(InvalidFieldError) as caught:
        build_request(None, [USER, {"role": "", "content": "Hi"}], {})
    assert caught.value.field == "prompt.messages[1].role"


@pytest.mark.parametrize(("prompt", "messages"), [(None, None), ("Hi", [USER])])
def test_one_kind_of_prompt(prompt: Any, messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match="either a prompt or messages"):
        build_request(prompt, messages, {})


def test_text_that_is_no_text() -> None:
    with pytest.raises(InvalidRequestError, match=r"prompt is .*: it must be valid Unicode text"):
        build_request("\ud800", None, {})


def test_none_is_left_to_the_server() -> None:
    request = build_request("Hi", None, {"temperature": None, "seed": None, "stop": None})
    assert [field.name for field, _ in request.spec.ListFields()] == ["prompt"]


def test_one_stop_string_is_not_split() -> None:
    assert list(build_request("Hi", None, {"stop": "END"}).spec.stop.stop) == ["END"]
