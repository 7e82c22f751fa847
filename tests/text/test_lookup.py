"""Prompt lookup against a naive search, and what it says of texts that repeat."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from anydraft.text.lookup import MIN_MATCH_BYTES, PromptLookup, prompt_parts
from anydraft.v1.prompt_pb2 import ChatMessage, ChatMessages, Prompt

SENTENCE = "The quick brown fox jumps over the lazy dog. "


def opened(text: str) -> PromptLookup:
    return PromptLookup([text.encode()])


def said(lookup: PromptLookup, count: int = 16, behind: str = "") -> str:
    pieces = lookup.continuation(behind.encode(), max_pieces=count)
    assert len(pieces) <= count
    assert all(piece.logprob < 0 and not piece.ends for piece in pieces)
    return b"".join(piece.text for piece in pieces).decode()


def test_reads_on_where_the_text_stood_before() -> None:
    lookup = opened(SENTENCE + "And then: ")
    assert said(lookup) == ""
    lookup.commit(b"The quick brown fox")
    expected = " jumps over the lazy dog. And then: The quick brown fox jumps over the"
    assert said(lookup) == expected
    assert said(lookup, behind=" jumps over the") == expected[15:] + " lazy dog."


def test_pieces_are_words_that_make_up_the_text() -> None:
    pieces = opened(SENTENCE + "The quick brown fox").continuation(max_pieces=3)
    assert [piece.text for piece in pieces] == [b" jumps", b" over", b" the"]


def test_the_longest_match_wins_over_the_latest() -> None:
    text = "one: the same old ending here A. two: the same old ending here B. one: the same old"
    assert said(opened(text), 4) == " ending here A."


def test_repetition_goes_on_for_ever() -> None:
    assert said(opened("la la la la la la la la la la"), 30) == " la" * 30


def test_short_matches_are_no_matches() -> None:
    assert said(opened("abc def. xyz. abc")) == ""


def test_other_alphabets() -> None:
    text = "今天天气很好，我们去公园散步吧。然后：今天天气很好，"
    assert said(opened(text), 1) == "我们去公园散步吧"


def test_a_path_may_end_inside_a_character() -> None:
    text = "今天天气很好，我们去公园散步吧。"
    lookup = opened(text + "然后：今天天气很好，")
    behind = "我们".encode()
    for cut in range(1, 6):
        pieces = lookup.continuation(behind[:cut], max_pieces=4)
        read = behind[:cut] + b"".join(piece.text for piece in pieces)
        assert read.startswith("我们去公园散步吧。".encode())


def test_a_question_asked_again_gets_its_answer_and_no_more() -> None:
    messages = [
        ChatMessage(role="user", content="What does the fox do?"),
        ChatMessage(role="assistant", content="It jumps over the dog."),
        ChatMessage(role="user", content="What does the fox do?"),
    ]
    parts = prompt_parts(Prompt(messages=ChatMessages(messages=messages)))
    lookup = PromptLookup(parts)
    assert said(lookup) == "It jumps over the dog."
    lookup.commit(b"It jumps over the dog.")
    assert said(lookup) == ""


def test_no_draft_speaks_for_the_next_turn() -> None:
    messages = [
        ChatMessage(role="user", content=SENTENCE.strip()),
        ChatMessage(role="user", content="Go on."),
    ]
    lookup = PromptLookup(prompt_parts(Prompt(messages=ChatMessages(messages=messages))))
    assert said(lookup) == ""
    lookup.commit(b"over the lazy")
    assert said(lookup) == " dog."


def test_matches_that_mislead_are_trusted_less() -> None:
    lookup = opened("a sentence that begins like this one; " * 2)
    before = lookup.continuation()[0].logprob
    for word in ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"]:
        lookup.commit(b"a sentence that ")
        lookup.commit(f"{word}! ".encode())
    lookup.commit(b"a sentence that ")
    assert lookup.continuation()[0].logprob < min(before, math.log(0.4))


def test_a_match_that_is_followed_is_trusted_more() -> None:
    text = "".join(f"{number} is followed by the next, " for number in range(20))
    lookup = opened(text)
    lookup.commit(text[:12].encode())
    likelihoods = [piece.logprob for piece in lookup.continuation(max_pieces=16)]
    assert likelihoods[0] < likelihoods[-1]


def naive(text: bytes, limit: int) -> set[bytes]:
    """All that stands behind one of the longest matches of the end that end before `limit`, on for
    ever."""
    best, sources = MIN_MATCH_BYTES, []
    for source in range(1, limit):
        length = 0
        while length < source and text[source - 1 - length] == text[-1 - length]:
            length += 1
        if length > best:
            best, sources = length, []
        if length == best:
            sources.append(source)
    return {(text[source:] * 40)[:40] for source in sources}


@given(
    prompt=st.text("ab ", max_size=60),
    answer=st.lists(st.text("ab ", max_size=9), max_size=6),
    behind=st.text("ab ", max_size=5),
)
def test_says_what_stands_behind_a_longest_match(
    prompt: str, answer: list[str], behind: str
) -> None:
    lookup = opened(prompt)
    for text in answer:
        lookup.commit(text.encode())
    committed = (prompt + "".join(answer)).encode()
    read = said(lookup, 40, behind).encode()[:40]
    found = naive(committed + behind.encode(), len(committed))
    assert read in found if found else not read


def test_a_search_looks_at_little_of_a_long_text() -> None:
    """Many places where the last bytes stood before are not all compared."""
    lookup = opened("the same old words " * 20_000)
    assert said(lookup, 4) == "the same old words"
    lookup.commit(b"the same old words and")
    assert said(lookup) == ""
