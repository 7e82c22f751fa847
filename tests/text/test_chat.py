from dataclasses import dataclass
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from anydraft.errors import FailedPreconditionError, InvalidRequestError
from anydraft.text import render_messages
from tests import tokenizers_zoo
from tests.text.strategies import texts

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

TEMPLATES = {
    "plain": "{% for m in messages %}{{ m.role }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}",
    "block whitespace": "  {% for m in messages %}\n  {{ bos_token + m.content }}\n"
    "  {%- endfor %}\n",
    "loop controls": "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}"
    "{% if m.role == 'system' %}{% continue %}{% endif %}{{ m.content }}{{ eos_token }}"
    "{% endfor %}",
    "json": "{{ messages | tojson(indent=2) }}{{ '<é&>' | tojson }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}\n{% endgeneration %}"
    "{% endfor %}",
    "namespace": "{% set ns = namespace(seen=0) %}{% for m in messages %}"
    "{% set ns.seen = ns.seen + 1 %}{% endfor %}{{ ns.seen }}{{ dict(a=1) }}",
    "tools": "{% if tools %}tools{% endif %}{{ messages[-1].content | trim }}{{ tools is none }}",
    "date": "{{ strftime_now('%Y') }}{{ unknown_name is defined }}",
}


@dataclass
class Message:
    role: str
    content: str


messages = st.lists(
    st.builds(Message, st.sampled_from(["system", "user", "assistant", "tool"]), texts),
    min_size=1,
    max_size=4,
)


def as_dicts(chat):
    return [{"role": message.role, "content": message.content} for message in chat]


def theirs(tokenizer, chat, template=None):
    return tokenizer.apply_chat_template(
        as_dicts(chat), chat_template=template, add_generation_prompt=True, tokenize=False
    )


@pytest.fixture(scope="module")
def tiny():
    return PreTrainedTokenizerFast(tokenizer_object=tokenizers_zoo.build("gpt2"), **SPECIAL)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@given(chat=messages)
def test_templates_render_as_in_transformers(tiny, template, chat):
    assert render_messages(chat, template, SPECIAL) == (theirs(tiny, chat, template), False)


@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct"])
@given(chat=messages)
def test_real_templates_render_as_in_transformers(real_chat_tokenizer, name, chat):
    tokenizer = real_chat_tokenizer(name)
    ours = render_messages(chat, tokenizer.chat_template, tokenizer.special_tokens_map)
    assert ours == (theirs(tokenizer, chat), False)


def test_without_a_template_messages_become_labelled_paragraphs():
    chat = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Hello")]
    expected = "System: Be brief.\n\nUser: Hi\n\nAssistant: Hello\n\nAssistant:"
    assert render_messages(chat, None, {}) == (expected, True)


def test_a_template_that_refuses_says_why():
    template = "{{ raise_exception('Roles must alternate') }}"
    with pytest.raises(InvalidRequestError, match="Roles must alternate") as caught:
        render_messages([Message("user", "x")], template, {})
    assert caught.value.reason == "CHAT_TEMPLATE_REFUSED"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[5].content + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace(_x=1) %}",
        "{{ dict.fromkeys.__globals__.items() }}",
    ],
)
def test_templates_cannot_fail_in_other_ways_nor_leave_the_sandbox(template):
    with pytest.raises(InvalidRequestError):
        render_messages([Message("user", "x")], template, {})


def test_a_template_that_does_not_parse_is_the_models_fault():
    with pytest.raises(FailedPreconditionError, match="does not parse"):
        render_messages([Message("user", "x")], "{% for %}", {})


def test_no_messages_are_refused():
    with pytest.raises(InvalidRequestError, match="no messages"):
        render_messages([], None, {})


def test_now_is_now():
    text, _ = render_messages([Message("user", "x")], "{{ strftime_now('%d %B %Y') }}", {})
    assert text == datetime.now().strftime("%d %B %Y")
