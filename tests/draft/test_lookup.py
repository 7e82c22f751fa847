from __future__ import annotations

from anydraft.v1.prompt_pb2 import ChatMessage, ChatMessages, Prompt
from draft_node.drafters.lookup import LookupDrafter, LookupStream

SENTENCE = "The quick brown fox jumps over the lazy dog. "


def opened(text: str) -> LookupStream:
    return LookupDrafter().open(Prompt(text=text))


def run(stream: LookupStream, count: int = 100) -> str:
    text = ""
    for _ in range(count):
        piece = stream.step()
        if piece is None:
            return text
        assert piece.logprob < 0
        text += piece.text
    return text


def test_reads_on_where_the_text_stood_before() -> None:
    stream = opened(SENTENCE + "And then: ")
    assert run(stream) == ""
    assert stream.idle
    stream.commit("The quick brown fox", restart=True)
    assert not stream.idle
    assert run(stream).startswith(" jumps over the lazy dog. And then: The quick brown fox")


def test_pieces_are_words_that_make_up_the_text() -> None:
    stream = opened(SENTENCE + "The quick brown fox")
    assert [stream.step().text for _ in range(3)] == [" jumps", " over", " the"]  # type: ignore[union-attr]


def test_the_longest_match_wins_over_the_latest() -> None:
    text = "one: the same old ending here A. two: the same old ending here B. one: the same old"
    assert run(opened(text), 4) == " ending here A."


def test_repetition_goes_on_for_ever() -> None:
    stream = opened("la la la la la la la la la la")
    assert run(stream, 30) == " la" * 30


def test_short_matches_are_no_matches() -> None:
    assert run(opened("abc def. xyz. abc")) == ""


def test_other_alphabets() -> None:
    stream = opened("今天天气很好，我们去公园散步吧。然后：今天天气很好，")
    assert run(stream, 1) == "我们去公园散步吧"


def test_a_question_asked_again_gets_its_answer_and_no_more() -> None:
    messages = [
        ChatMessage(role="user", content="What does the fox do?"),
        ChatMessage(role="assistant", content="It jumps over the dog."),
        ChatMessage(role="user", content="What does the fox do?"),
    ]
    stream = LookupDrafter().open(Prompt(messages=ChatMessages(messages=messages)))
    assert run(stream) == "It jumps over the dog."
    assert stream.idle


def test_no_draft_speaks_for_the_next_turn() -> None:
    messages = [
        ChatMessage(role="user", content=SENTENCE),
        ChatMessage(role="user", content="Go on."),
    ]
    stream = LookupDrafter().open(Prompt(messages=ChatMessages(messages=messages)))
    assert run(stream) == ""
    stream.commit("over the lazy dog", restart=True)
    assert run(stream) in (".", ". ")


def test_committed_parts_of_the_draft_leave_the_rest() -> None:
    stream = opened(SENTENCE + "The quick brown fox")
    drafted = run(stream, 5)
    assert drafted == " jumps over the lazy dog"
    stream.commit(" jumps over", restart=False)
    assert run(stream, 1) == "."
    stream.commit(" a fence", restart=True)
    assert run(stream) == ""


def test_matches_that_mislead_ask_for_longer_ones() -> None:
    stream = opened("a sentence that begins like this one; a sentence that beg")
    assert run(stream, 1) == "ins"
    stream.commit("an here", restart=True)
    stream.commit(" a sentence that be", restart=True)
    assert run(stream) == ""
