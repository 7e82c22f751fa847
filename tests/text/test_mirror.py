from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anydraft.text import AssistantMirror
from anydraft.text.continuation import Continuation
from tests.text import cases
from tests.text.strategies import texts, words

PROMPT = "User: hello\n\nAssistant:"


def parts(text, cuts):
    bounds = [0, *sorted(cut for cut in cuts if cut <= len(text)), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


def whole_encoding(tokenizer, prompt_ids, text):
    return prompt_ids + Continuation(tokenizer).encode(prompt_ids, text.encode())


@pytest.mark.parametrize("tokenizer", cases.ALL, indirect=True)
@given(text=words, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_words_are_encoded_as_if_they_had_come_at_once(tokenizer, text, cuts):
    prompt_ids = tokenizer.encode(PROMPT)
    mirror = AssistantMirror(tokenizer, prompt_ids)
    text = " " + text
    for part in parts(text, cuts):
        mirror.append(part)
    assert mirror.ids == whole_encoding(tokenizer, prompt_ids, text)


@pytest.mark.parametrize("tokenizer", cases.EXACT, indirect=True)
@given(
    text=texts.filter(lambda text: not set("▁<[") & set(text)),
    cuts=st.lists(st.integers(0, 300), max_size=8),
)
def test_ids_always_say_the_text(tokenizer, text, cuts):
    # Without SentencePiece's own mark, and what some put a space behind: added tokens.
    prompt_ids = tokenizer.encode(PROMPT)
    mirror = AssistantMirror(tokenizer, prompt_ids)
    said = ""
    for part in parts(text, cuts):
        mirror.append(part)
        said += part
        assert tokenizer.text_bytes(mirror.ids[len(prompt_ids) :]) == said.encode()


@pytest.mark.parametrize("tokenizer", cases.ALL, indirect=True)
@given(pieces=st.lists(texts, max_size=5), prompt=texts)
def test_what_append_returns_stayed_and_what_follows_changed(tokenizer, pieces, prompt):
    prompt_ids = tokenizer.encode(prompt)
    mirror = AssistantMirror(tokenizer, prompt_ids)
    for piece in pieces:
        before = list(mirror.ids)
        kept = mirror.append(piece)
        assert len(prompt_ids) <= kept <= len(before)
        assert mirror.ids[:kept] == before[:kept]
        assert mirror.ids[kept : kept + 1] != before[kept : kept + 1] or kept == len(mirror.ids)


@pytest.mark.parametrize("tokenizer", cases.EXACT, indirect=True)
@pytest.mark.parametrize(
    "text",
    [
        "The verifier checks every draft, and commits what the target would say. " * 20,
        "def add(left, right):\n    return left + right  # 12 and 345\n\n\n" * 20,
        "你好，世界。今天天气很好，我们去公园散步吧。" * 20,
        "Le naïf garçon 🙂 a mangé\r\n\r\nsoixante-dix crêpes; voilà!\t" * 20,
    ],
)
def test_running_text_is_encoded_as_if_it_had_come_at_once(tokenizer, text):
    prompt_ids = tokenizer.encode(PROMPT)
    mirror = AssistantMirror(tokenizer, prompt_ids)
    for start in range(0, len(text), 7):
        mirror.append(text[start : start + 7])
    assert mirror.ids == whole_encoding(tokenizer, prompt_ids, text)


@pytest.mark.parametrize("tokenizer", cases.ALL, indirect=True)
@pytest.mark.parametrize("unit", ["a", " ", "\n", "ab", "你", "🙂", " the target"])
def test_little_is_encoded_again_even_without_a_boundary(tokenizer, unit, monkeypatch):
    encoded, encode = [], tokenizer.encode
    mirror = AssistantMirror(tokenizer, encode(PROMPT))
    monkeypatch.setattr(tokenizer, "encode", lambda text: encoded.append(len(text)) or encode(text))
    for _ in range(300):
        mirror.append(unit * 9)
    assert 0 < max(encoded) < 2000


def test_lossy_text_is_mirrored_all_the_same():
    tokenizer = cases.load("wordpiece")
    mirror = AssistantMirror(tokenizer, tokenizer.encode("Hello"))
    for part in [" The VERIFIER", " checks ꙮ", "", " every draft"]:
        mirror.append(part)
    assert mirror.ids == tokenizer.encode("Hello The VERIFIER checks ꙮ every draft")


def test_nothing_appended_changes_nothing():
    tokenizer = cases.load("gpt2")
    mirror = AssistantMirror(tokenizer, [1, 2, 3])
    assert mirror.append("") == 3
    assert mirror.ids == [1, 2, 3]
