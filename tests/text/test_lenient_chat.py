"""Messages for an assistant whose template refuses them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anydraft.errors import InvalidRequestError
from anydraft.text import TextTokenizer, render_messages
from anydraft.text.lenient_chat import render_messages_leniently
from anydraft.v1 import prompt_pb2
from tests import tokenizers_zoo

PRINT = "{{ m.role[0] }}[{{ m.content }}]"
ALTERNATE = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
)
GEMMA = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}" + ALTERNATE + PRINT + "{% endfor %}"
)
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}s[{{ messages[0].content }}]"
    "{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    + ALTERNATE
    + PRINT
    + "{% endfor %}"
)
THREE_ROLES = (
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('Unknown role') }}{% endif %}" + PRINT + "{% endfor %}"
)
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% endif %}" + PRINT + "{% endfor %}"
)
ANYTHING = "{% for m in messages %}" + PRINT + "{% endfor %}"
NOTHING = "{{ raise_exception('no') }}"
FAILS = "{{ messages[0].tool_calls[0].name + 1 }}"


@dataclass
class Message:
    role: str
    content: str


def chat(*turns):
    return [Message(*turn.split(":")) for turn in turns]


@pytest.mark.parametrize(
    ("template", "turns", "expected"),
    [
        (ANYTHING, ["tool:1", "system:2"], "t[1]s[2]"),
        (GEMMA, ["user:1", "assistant:2", "user:3"], "u[1]a[2]u[3]"),
        (GEMMA, ["system:1", "user:2"], "u[1\n\n2]"),
        (GEMMA, ["system:1", "user:2", "user:3"], "u[1\n\n2\n\n3]"),
        (GEMMA, ["user:1", "assistant:2", "system:3", "user:4"], "u[1]a[2]u[3\n\n4]"),
        (GEMMA, ["system:1"], "u[1]"),
        (GEMMA, ["assistant:1", "user:2"], "u[]a[1]u[2]"),
        (MISTRAL, ["system:1", "user:2", "user:3"], "s[1]u[2\n\n3]"),
        (MISTRAL, ["user:1", "assistant:2", "tool:3"], "u[1]a[2]u[3]"),
        (THREE_ROLES, ["developer:1", "function:2", "model:3"], "s[1]u[2]a[3]"),
        (NO_SYSTEM, ["system:1", "user:2", "user:3"], "u[1\n\n2]u[3]"),
        (NO_SYSTEM, ["user:1", "system:2"], "u[1]u[2]"),
    ],
)
def test_the_first_form_that_is_accepted(template, turns, expected):
    assert render_messages_leniently(chat(*turns), template, {}) == (expected, False)


@pytest.mark.parametrize("template", [NOTHING, FAILS, "{% for %}", None])
def test_without_the_template_when_it_accepts_nothing(template):
    messages = chat("system:1", "user:2")
    plain = ("System: 1\n\nUser: 2\n\nAssistant:", True)
    assert render_messages_leniently(messages, template, {}) == plain


roles = st.sampled_from(["system", "user", "assistant", "tool", "Developer", "x"])
chats = st.lists(st.builds(Message, roles, st.text("ab", max_size=3)), min_size=1, max_size=6)


@given(messages=chats, template=st.sampled_from([GEMMA, MISTRAL, THREE_ROLES, NO_SYSTEM, ANYTHING]))
def test_every_chat_is_rendered_and_nothing_that_was_said_is_lost(messages, template):
    text, add_special_tokens = render_messages_leniently(messages, template, {})
    assert not add_special_tokens
    for message in messages:
        assert message.content in text


@given(messages=chats)
def test_what_the_template_accepts_is_rendered_as_ever(messages):
    try:
        expected = render_messages(messages, MISTRAL, {})
    except InvalidRequestError:
        return
    assert render_messages_leniently(messages, MISTRAL, {}) == expected


def prompt(*turns):
    messages = [prompt_pb2.ChatMessage(role=m.role, content=m.content) for m in chat(*turns)]
    return prompt_pb2.Prompt(messages=prompt_pb2.ChatMessages(messages=messages))


def test_prompts_of_assistants():
    tokenizer = TextTokenizer(tokenizers_zoo.gpt2(), chat_template=GEMMA)
    with pytest.raises(InvalidRequestError, match="System role"):
        tokenizer.encode_prompt(prompt("system:Be brief.", "user:Hi"))
    ids = tokenizer.encode_prompt_leniently(prompt("system:Be brief.", "user:Hi"))
    assert ids == tokenizer.encode("u[Be brief.\n\nHi]")
    with pytest.raises(InvalidRequestError, match="empty"):
        tokenizer.encode_prompt_leniently(prompt_pb2.Prompt(text=""))


def test_an_assistant_leaves_out_what_it_has_no_row_for():
    tokenizer = TextTokenizer(tokenizers_zoo.gpt2())
    tokenizer.check_vocabulary(tokenizer.backend.get_vocab_size(with_added_tokens=False))
    ids = tokenizer.encode_prompt_leniently(prompt_pb2.Prompt(text="hello <think>"))
    assert ids == tokenizer.encode("hello ")
