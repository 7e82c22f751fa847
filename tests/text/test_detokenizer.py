import pytest
from hypothesis import given
from hypothesis import strategies as st

from anydraft.text import StreamingDetokenizer
from anydraft.text.detokenizer import HELD_BYTES
from tests.text import cases
from tests.text.strategies import texts


def stream(tokenizer, ids, *, keep_special=True):
    detokenizer = StreamingDetokenizer(tokenizer, keep_special=keep_special)
    parts = [detokenizer.push([token_id]) for token_id in ids]
    return "".join([*parts, detokenizer.flush()])


def decoded(tokenizer, ids, *, keep_special=True):
    """What the library's own decoding gains by `ids` in running text."""
    anchor, decode = tokenizer.encode("a")[-1], tokenizer.backend.decode
    whole = decode([anchor, *ids], skip_special_tokens=not keep_special)
    return whole.removeprefix(decode([anchor]))


@pytest.mark.parametrize("tokenizer", cases.ALL, indirect=True)
@given(text=texts, keep_special=st.booleans())
def test_streamed_text_is_what_decoding_gives(tokenizer, text, keep_special):
    ids = tokenizer.encode("a" + text)
    expected = decoded(tokenizer, ids, keep_special=keep_special)
    assert stream(tokenizer, ids, keep_special=keep_special) == expected


@pytest.mark.parametrize("tokenizer", cases.ALL, indirect=True)
@given(data=st.data(), keep_special=st.booleans())
def test_any_ids_stream_to_what_decoding_gives(tokenizer, data, keep_special):
    # Short enough that a run of byte tokens is held as a whole.
    any_id = st.integers(0, tokenizer.vocab_size + 2)
    single = [i for b in range(256) if (i := tokenizer.byte_id(b)) is not None] or [0]
    ids = data.draw(st.lists(st.one_of(any_id, st.sampled_from(single)), max_size=HELD_BYTES))
    expected = decoded(tokenizer, ids, keep_special=keep_special)
    assert stream(tokenizer, ids, keep_special=keep_special) == expected


@pytest.mark.parametrize("tokenizer", cases.EXACT, indirect=True)
@given(text=texts, data=st.data())
def test_announced_and_pending_are_the_bytes_so_far(tokenizer, text, data):
    ids = tokenizer.encode("a" + text)
    cut = data.draw(st.integers(0, len(ids)))
    detokenizer = StreamingDetokenizer(tokenizer, keep_special=True)
    announced = detokenizer.push(ids[:cut]).encode()
    assert announced + detokenizer.pending == tokenizer.text_bytes(ids[:cut])
    announced += detokenizer.push(ids[cut:]).encode()
    announced += detokenizer.flush().encode()
    assert announced == tokenizer.text_bytes(ids)
    assert detokenizer.pending == b""


def byte_ids(tokenizer, data):
    return [tokenizer.byte_id(byte) for byte in data]


@pytest.mark.parametrize("name", ["gpt2", "metaspace_never"])
def test_a_character_waits_until_it_is_whole(name):
    tokenizer = cases.load(name)
    detokenizer = StreamingDetokenizer(tokenizer, keep_special=True)
    assert detokenizer.push(byte_ids(tokenizer, "🙂".encode()[:3])) == ""
    assert detokenizer.pending == "🙂".encode()[:3]
    last = byte_ids(tokenizer, "🙂".encode()[3:])
    assert detokenizer.push(last) + detokenizer.push(tokenizer.encode("[TOOL]")) == "🙂[TOOL]"


@pytest.mark.parametrize("name", ["gpt2", "metaspace_never"])
def test_bytes_that_cannot_become_a_character_are_announced_at_once(name):
    tokenizer = cases.load(name)
    detokenizer = StreamingDetokenizer(tokenizer, keep_special=True)
    assert detokenizer.push(byte_ids(tokenizer, b"\xff")) == "\ufffd"
    assert detokenizer.pending == b""


def test_invalid_runs_of_byte_tokens_count_every_byte():
    tokenizer = cases.load("metaspace_never")
    run = byte_ids(tokenizer, "你".encode() + b"\xff\xe4")
    assert stream(tokenizer, run) == "\ufffd" * 5


def test_long_runs_of_byte_tokens_flow():
    tokenizer = cases.load("metaspace_never")
    text = "🙂" * 60
    detokenizer = StreamingDetokenizer(tokenizer, keep_special=True)
    announced = ""
    for token_id in byte_ids(tokenizer, text.encode()):
        announced += detokenizer.push([token_id])
        assert len(detokenizer.pending) <= HELD_BYTES
    assert announced
    assert announced + detokenizer.flush() == text


def test_special_tokens_are_left_out_for_users_and_kept_for_nodes():
    tokenizer = cases.load("gpt2")
    ids = tokenizer.encode("hello<|im_end|><think> world")
    assert stream(tokenizer, ids) == "hello<|im_end|><think> world"
    assert stream(tokenizer, ids, keep_special=False) == "hello<think> world"
