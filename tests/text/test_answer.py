"""Answers as text: what is shown, and where a stop string ends it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast
from transformers.generation.stopping_criteria import StopStringCriteria

from anydraft.text import AnswerText, StreamingDetokenizer
from anydraft.text.detokenizer import HELD_BYTES
from tests import tokenizers_zoo
from tests.text import cases

FAMILIES = ["gpt2", "qwen", "metaspace_never", "metaspace_first", "unigram", "wordpiece"]
STOPS = ["<|im_start|>", "<s>", "im_", "x<|im", "start|>y", "🙂", "\n\n", "he", "你", "<", "de<s>"]

pieces = st.lists(
    st.sampled_from(["<|im_start|>", "<s>", "<think>", "x", "y", "🙂", "你", "\n", "the ", "a"]),
    max_size=12,
).map("".join)
stop_lists = st.lists(st.sampled_from(STOPS), max_size=3)


def run(tokenizer, ids, stops):
    """Internal text, shown text, how many ids were taken, and the stop string."""
    answer = AnswerText(tokenizer, stops)
    internal, shown, count = "", "", 0
    for token_id in ids:
        part = answer.push(token_id)
        internal, shown, count = internal + part.internal, shown + part.shown, count + 1
        if answer.stop is not None:
            break
    part = answer.finish()
    return internal + part.internal, shown + part.shown, count, answer.stop


def streamed(tokenizer, ids, *, keep_special):
    detokenizer = StreamingDetokenizer(tokenizer, keep_special=keep_special)
    return "".join([*(detokenizer.push([token_id]) for token_id in ids), detokenizer.flush()])


def any_ids(tokenizer):
    any_id = st.integers(0, tokenizer.vocab_size + 2)
    single = [i for b in "你🙂é\xff".encode() if (i := tokenizer.byte_id(b)) is not None] or [0]
    special = [tokenizer.backend.token_to_id(token) for token in tokenizers_zoo.SPECIAL]
    return st.lists(
        st.one_of(any_id, st.sampled_from(single), st.sampled_from(special)), max_size=HELD_BYTES
    )


@pytest.mark.parametrize("name", FAMILIES)
@given(data=st.data())
def test_without_stop_strings_both_texts_are_those_of_decoding(name, data):
    tokenizer = cases.load(name)
    ids = data.draw(any_ids(tokenizer))
    internal, shown, _, stop = run(tokenizer, ids, [])
    assert internal == streamed(tokenizer, ids, keep_special=True)
    assert shown == streamed(tokenizer, ids, keep_special=False)
    assert stop is None


def characters(tokenizer, ids):
    """Each character of the text of `ids`, which are whole characters, and whether it is shown."""
    data, shown = b"", []
    for token_id in ids:
        piece = tokenizer.token_bytes(token_id)
        data += piece
        shown += [not tokenizer.is_special(token_id)] * len(piece)
    starts = [at for at, byte in enumerate(data) if byte & 0xC0 != 0x80]
    return list(zip(data.decode(), (shown[at] for at in starts), strict=True))


@pytest.mark.parametrize("name", FAMILIES)
@given(text=pieces, stops=stop_lists)
def test_an_answer_ends_before_its_first_stop_string(name, text, stops):
    tokenizer = cases.load(name)
    ids = tokenizer.encode("a" + text)
    internal, shown, count, stop = run(tokenizer, ids, stops)
    taken = characters(tokenizer, ids[:count])
    assert internal == "".join(character for character, _ in taken)
    found = min(
        ((internal.find(s) + len(s), internal.find(s), s) for s in stops if s in internal),
        default=(0, len(internal), None),
    )
    assert stop == found[2]
    assert shown == "".join(character for character, shows in taken[: found[1]] if shows)
    if stop is None:
        assert count == len(ids)


@pytest.mark.parametrize("name", ["gpt2", "qwen", "llama3", "metaspace_never"])
@given(text=pieces, stops=st.lists(st.sampled_from(STOPS), min_size=1, max_size=3))
def test_it_ends_at_the_token_where_generate_ends(name, text, stops):
    assume(name != "metaspace_never" or text.isascii())  # generate cannot see byte tokens
    tokenizer = cases.load(name)
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizers_zoo.build(name))
    ids = tokenizer.encode("a" + text)
    _, _, count, stop = run(tokenizer, ids, stops)
    criteria = StopStringCriteria(theirs, stops)
    ended = [n for n in range(1, len(ids) + 1) if criteria(torch.tensor([ids[:n]]), None).all()]
    assert (ended[0] if ended else None) == (None if stop is None else count)


@pytest.mark.parametrize("name", ["gpt2", "metaspace_never"])
@pytest.mark.parametrize(
    ("stop", "shown"),
    [
        ("<|im_start|>", "ok 🙂"),
        ("🙂<|im_start|>", "ok "),
        (" 🙂", "ok"),
        ("start|>x", "ok 🙂"),
        ("x", "ok 🙂"),
        ("y", "ok 🙂x"),
    ],
)
def test_what_precedes_a_stop_string_is_shown_even_where_a_special_token_cut_it(name, stop, shown):
    tokenizer = cases.load(name)
    smile = [tokenizer.byte_id(byte) for byte in "🙂".encode()]
    ids = [*tokenizer.encode("ok "), *smile, *tokenizer.encode("<|im_start|>")]
    ids += [tokenizer.backend.token_to_id(letter) for letter in "xyx"]
    assert run(tokenizer, ids, [stop])[1].strip() == shown.strip()
    assert run(tokenizer, ids, [stop])[3] == stop


@pytest.mark.parametrize("name", ["gpt2", "metaspace_never"])
def test_an_unfinished_character_before_a_stop_string_is_marked(name):
    tokenizer = cases.load(name)
    broken = [tokenizer.byte_id(byte) for byte in "🙂".encode()[:1]]
    ids = [*tokenizer.encode("ok"), *broken, *tokenizer.encode("<|im_start|>")]
    assert run(tokenizer, ids, ["<|im_start|>"])[1].strip() == "ok\ufffd"
    assert run(tokenizer, ids, ["\ufffd<|im_start|>"])[1].strip() == "ok"


@pytest.mark.parametrize("name", ["gpt2", "metaspace_never"])
@given(data=st.data(), stops=stop_lists)
def test_whatever_the_ids_what_is_shown_begins_what_decoding_gives(name, data, stops):
    tokenizer = cases.load(name)
    ids = data.draw(any_ids(tokenizer))
    _, shown, count, _ = run(tokenizer, ids, stops)
    assert streamed(tokenizer, ids[:count], keep_special=False).startswith(shown)
