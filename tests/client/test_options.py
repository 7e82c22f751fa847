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
        ["Hi"],
        [],
    ],
)
def test_malformed_messages(messages: Any) -> None:
    with pytest.raises(InvalidRequestError, match="messages"):
        build_request(None, messages, {})


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
