"""Prompt lookup in a session's tree; the search itself is tested in tests/text."""

from __future__ import annotations

from anydraft.text.tree import TextTree
from anydraft.v1.prompt_pb2 import ChatMessage, ChatMessages, Prompt
from draft_node.drafters.lookup import AnswerMemory, LookupDrafter, LookupStream

SENTENCE = "The quick brown fox jumps over the lazy dog. "


class Drafting:
    """A stream and its tree, as a loop holds them."""

    def __init__(self, prompt: str | Prompt, memory: AnswerMemory | None = None) -> None:
        prompt = Prompt(text=prompt) if isinstance(prompt, str) else prompt
        self.stream: LookupStream = LookupDrafter(memory).open(prompt)
        self.tree = TextTree(max_pieces=96, max_bytes=65536)

    def commit(self, text: str) -> None:
        self.tree.commit(text.encode())
        self.stream.commit(text, turn_ms=0.0)

    def grow(self, limit: int = 96) -> list[str]:
        """What the tree holds then, as one chain."""
        while not self.stream.idle:
            self.stream.grow(self.tree, limit)
        pieces, nodes = [], self.tree.roots
        while nodes:
            (node,) = nodes
            pieces.append(self.tree.rest(node).decode())
            nodes = node.children
        return pieces


def test_reads_on_where_the_text_stood_before() -> None:
    drafting = Drafting(SENTENCE + "And then: ")
    assert drafting.grow() == []
    drafting.commit("The quick brown fox")
    assert drafting.grow(4) == [" jumps", " over", " the", " lazy"]
    assert drafting.stream.idle


def test_committed_parts_of_the_chain_leave_the_rest_and_are_not_said_again() -> None:
    drafting = Drafting(SENTENCE + "The quick brown fox")
    before = drafting.grow(5)
    assert before == [" jumps", " over", " the", " lazy", " dog"]
    held = list(drafting.tree.best_first())
    # In the middle of a word: what is left of it is not hung beside itself.
    drafting.commit(" jumps ov")
    after = drafting.grow(1)
    assert after == ["er", " the", " lazy", " dog", "."]
    assert {h.node for h in held[1:]} <= {h.node for h in drafting.tree.best_first()}
    drafting.commit(" a fence")
    assert drafting.grow() == []


def test_a_chain_ends_where_it_is_unlikely_to_be_reached() -> None:
    drafting = Drafting("abcdefghijklm " + "word and other " * 30 + "; abcdefghijklm")
    drafting.grow()
    least = min(held.logprob for held in drafting.tree.best_first())
    assert -4 < least < 0


def test_earlier_answers_are_remembered() -> None:
    memory = AnswerMemory()
    first = Drafting("Write it.", memory)
    first.commit("def parse(line): return line.strip()")
    first.grow()
    first.commit(".split()")
    first.stream.close()
    second = Drafting("Write it again.", memory)
    second.commit("def parse(line): ret")
    assert "".join(second.grow()) == "urn line.strip().split()"
    forgetful = Drafting("Write it again.", None)
    forgetful.commit("def parse(line): ret")
    assert forgetful.grow() == []


def test_memory_is_bounded_and_holds_nothing_twice() -> None:
    memory = AnswerMemory(max_bytes=10)
    for answer in (b"abcd", b"efgh", b"abcd", b"far too long", b"", b"ijkl"):
        memory.add(answer)
    assert memory.answers() == (b"efgh", b"ijkl")


def test_it_is_sure_of_long_matches_only() -> None:
    words = " ".join(f"word{number}" for number in range(30))
    drafting = Drafting(f"{words}. Again: {words[:20]}")
    drafting.grow()
    assert not drafting.stream.is_sure
    drafting.commit(words[20:110])
    drafting.grow()
    assert drafting.stream.is_sure
    drafting.commit(" no such words")
    drafting.grow()
    assert not drafting.stream.is_sure


def test_no_draft_speaks_for_the_next_turn() -> None:
    messages = [
        ChatMessage(role="user", content=SENTENCE),
        ChatMessage(role="user", content="Go on."),
    ]
    drafting = Drafting(Prompt(messages=ChatMessages(messages=messages)))
    assert drafting.grow() == []
    drafting.commit("over the lazy dog")
    assert "".join(drafting.grow()).strip() == "."
