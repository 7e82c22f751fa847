"""The text tree against a model that keeps every piece ever, and two trees over a bad channel."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from anydraft.text.tree import MEMORY_BYTES, Node, Piece, TextTree

# Few letters, so that pieces and committed text often agree; one that takes two bytes.
texts = st.binary(min_size=0, max_size=3).map(
    lambda data: bytes(b"ab\xc3\xa9"[n % 4] for n in data)
)
logprobs = st.one_of(
    st.floats(-5, 0), st.sampled_from([math.nan, math.inf, -math.inf, 3.0, -0.0, -1e308])
)


def piece(text: bytes, logprob: float = -1.0, *, ends: bool = False) -> Piece:
    return Piece(text, logprob, ends)


def tree(max_pieces: int = 10_000, max_bytes: int = 1_000_000) -> TextTree:
    return TextTree(max_pieces=max_pieces, max_bytes=max_bytes)


def held(tree: TextTree) -> dict[int, tuple[bytes, bool]]:
    """What each held piece says beyond the committed text, its path included."""
    said = {}
    for found in tree.best_first():
        path = tree.path(found.node)
        rest = b"".join(tree.rest(node) for node in path)
        said.update(dict.fromkeys(found.node.ids, (rest, found.node.ends)))
    return said


class Model:
    """The wire contract's rule, said as plainly as it goes: each piece is all of the text up to
    its end, and stays as long as that agrees with the committed text."""

    def __init__(self) -> None:
        self.committed = b""
        self.pieces: dict[int, tuple[bytes, bool]] = {}
        self.newest = 0

    def add(self, piece_id: int, parent_id: int, base: int, piece: Piece) -> None:
        if piece_id <= self.newest:
            return
        self.newest = piece_id
        if bool(piece.text) == piece.ends or not (parent_id or base <= len(self.committed)):
            return
        before, ended = self.pieces.get(parent_id, (self.committed[:base], bool(parent_id)))
        if not ended:
            self.pieces[piece_id] = (before + piece.text, piece.ends)

    def held(self) -> dict[int, tuple[bytes, bool]]:
        size = len(self.committed)
        return {
            piece_id: (text[size:], ends)
            for piece_id, (text, ends) in self.pieces.items()
            if text.startswith(self.committed) and (ends or len(text) > size)
        }


class TreeRules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree, self.model, self.id = tree(), Model(), 0

    @rule(data=st.data(), text=texts, logprob=logprobs, ends=st.booleans(), newer=st.integers(0, 2))
    def add(self, data: st.DataObject, text: bytes, logprob: float, ends: bool, newer: int) -> None:
        self.id += newer
        parent = data.draw(st.one_of(st.just(0), st.integers(0, self.id + 1)))
        base = data.draw(st.integers(0, len(self.model.committed) + 1))
        self._add(parent, base, piece(text, logprob, ends=ends))

    @precondition(lambda self: self.model.held())
    @rule(data=st.data(), text=texts.filter(bool), logprob=logprobs)
    def add_below_what_is_held(self, data: st.DataObject, text: bytes, logprob: float) -> None:
        self.id += 1
        self._add(data.draw(st.sampled_from(sorted(self.model.held()))), 0, piece(text, logprob))

    @rule(data=st.data(), more=texts)
    def add_at_committed_text(self, data: st.DataObject, more: bytes) -> None:
        base = data.draw(st.integers(0, len(self.model.committed)))
        self.id += 1
        self._add(0, base, piece(self.model.committed[base:] + more))

    def _add(self, parent: int, base: int, new: Piece) -> None:
        newest = self.model.newest
        self.model.add(self.id, parent, base, new)
        node = self.tree.add(self.id, parent, base, new)
        taken = self.id > newest and self.id in self.model.held()
        assert (node is not None) is taken
        assert node is None or (self.id in node.ids and node in self.tree)

    @rule(text=texts)
    def commit(self, text: bytes) -> None:
        self.model.committed += text
        self.tree.commit(text)

    @precondition(lambda self: self.model.held())
    @rule(data=st.data(), more=texts)
    def commit_what_is_held(self, data: st.DataObject, more: bytes) -> None:
        chosen, _ = self.model.held()[data.draw(st.sampled_from(sorted(self.model.held())))]
        size = data.draw(st.integers(0, len(chosen)))
        self.commit(chosen[:size] + (more if size == len(chosen) else b""))

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert held(self.tree) == self.model.held()
        assert self.tree.num_pieces == len(self.model.held())
        assert self.tree.committed_bytes == len(self.model.committed)
        assert self.tree.newest == self.model.newest

    @invariant()
    def best_comes_first_and_parents_before_children(self) -> None:
        seen: list[Node] = []
        last = 0.0
        for found in self.tree.best_first():
            path = self.tree.path(found.node)
            assert found.depth == len(path) - 1
            assert all(node in seen for node in path[:-1])
            assert found.logprob <= last
            assert found.logprob == pytest.approx(sum(node.logprob for node in path))
            last = found.logprob
            seen.append(found.node)


TestTreeRules = TreeRules.TestCase


@dataclass
class Channel:
    """Messages in flight one way: some are lost, some overtake others."""

    chance: random.Random
    bad: float

    def __post_init__(self) -> None:
        self.messages: list[list[tuple[int, int, int, Piece]]] = []

    def send(self, message: list[tuple[int, int, int, Piece]]) -> None:
        if self.chance.random() >= self.bad:
            self.messages.append(message)

    def receive(self) -> list[tuple[int, int, int, Piece]]:
        late = self.chance.random() < self.bad
        return self.messages.pop(self.chance.randrange(len(self.messages)) if late else 0)


@settings(max_examples=300)
@given(seed=st.integers(0, 2**32), bad=st.sampled_from([0.0, 0.0, 0.1, 0.5]))
def test_two_copies_over_a_channel_agree(seed: int, bad: float) -> None:
    """The sender hears of committed text late; the receiver hears of pieces late, or never. The
    sender holds to the receiver's bounds."""
    chance = random.Random(seed)
    bounds = chance.choice([(10_000, 100_000), (6, 100_000), (10_000, 9)])
    sender, receiver = tree(*bounds), tree(*bounds)
    channel = Channel(chance, bad)
    committed = b""

    def write() -> None:
        message = []
        for _ in range(chance.randrange(4)):
            nodes = [found.node for found in sender.best_first() if not found.node.ends]
            below = chance.choice([None, *nodes])
            text = bytes(chance.choices(b"ab", k=chance.randint(0, 3)))
            before = sender.num_pieces
            node = sender.hang(piece(text, -chance.random(), ends=not text), below)
            if node is not None and node.id == sender.newest and sender.num_pieces > before:
                message.append(
                    (
                        node.id,
                        0 if below is None else below.id,
                        sender.committed_bytes,
                        piece(node.text, node.logprob, ends=node.ends),
                    )
                )
        channel.send(message)

    def choose() -> bytes:
        paths = [rest for rest, _ in held(receiver).values()]
        drafted = chance.choice(paths) if paths and chance.random() < 0.8 else b""
        return drafted[: chance.randint(0, len(drafted))] + bytes(chance.choices(b"ab", k=1))

    def read() -> None:
        for arrived in channel.receive():
            receiver.add(*arrived)

    for _ in range(40):
        action = chance.randrange(4)
        if action == 0:
            write()
        elif action == 1 and channel.messages:
            read()
        elif action == 2:
            text = choose()
            committed += text
            receiver.commit(text)
        elif action == 3:
            behind = committed[sender.committed_bytes :]
            sender.commit(behind[: chance.randint(0, len(behind))])
    sender.commit(committed[sender.committed_bytes :])
    while channel.messages:
        read()
    ours, theirs = held(sender), held(receiver)
    for piece_id, said in theirs.items():
        assert ours[piece_id] == said
    if not bad:
        sent = {found.node.id for found in sender.best_first()}
        assert {found.node.id for found in receiver.best_first()} == sent


def test_a_piece_committed_in_part_keeps_its_rest_and_its_logprob() -> None:
    text = tree()
    world = text.add(1, 0, 0, piece(b" world", -1.0))
    assert world is not None
    text.add(2, 1, 0, piece(b"!", -2.0))
    text.commit(b" worl")
    first, second = text.best_first()
    assert (text.rest(first.node), first.logprob, first.depth) == (b"d", -1.0, 0)
    assert (text.rest(second.node), second.logprob, second.depth) == (b"!", -3.0, 1)
    text.commit(b"d")
    (only,) = text.best_first()
    assert (only.node.id, only.node.parent, only.logprob, only.depth) == (2, None, -2.0, 0)
    assert world not in text


def test_what_a_draft_says_twice_is_held_once_under_both_ids() -> None:
    text = tree()
    first = text.add(1, 0, 0, piece(b"a", -1.0))
    assert text.add(2, 0, 0, piece(b"a", -9.0)) is first
    below = text.add(3, 2, 0, piece(b"b"))
    assert below is not None
    assert below.parent is first
    assert text.num_pieces == 3
    text.commit(b"a")
    assert text.add(4, 2, 0, piece(b"c")) is not None
    assert text.num_pieces == 2


@pytest.mark.parametrize(
    ("piece_id", "parent", "base", "new"),
    [
        (9, 9, 0, piece(b"x")),  # below itself
        (9, 10, 0, piece(b"x")),  # below one that comes later
        (9, 3, 0, piece(b"x")),  # below one that never came
        (9, 2, 0, piece(b"x")),  # below the end of the answer
        (9, 2**64 - 1, 0, piece(b"x")),
        (9, 0, 2, piece(b"x")),  # a gap
        (9, 0, 2**64 - 1, piece(b"x")),
        (9, 0, 0, piece(b"no")),  # contradicts
        (9, 0, 1, piece(b"")),  # says nothing
        (9, 0, 1, piece(b"x", ends=True)),  # text behind the end
        (9, 0, 0, piece(b"", ends=True)),  # the answer went on
        (4, 0, 1, piece(b"x")),  # not newer
        (0, 0, 1, piece(b"x")),
    ],
)
def test_pieces_that_are_dropped_leave_what_is_held(
    piece_id: int, parent: int, base: int, new: Piece
) -> None:
    text = tree()
    text.add(1, 0, 0, piece(b"ab"))
    text.add(2, 1, 0, piece(b"", ends=True))
    text.commit(b"a")
    text.add(4, 0, 1, piece(b"c"))
    before = held(text)
    assert text.add(piece_id, parent, base, new) is None
    assert held(text) == before
    # Nor is what hangs below it taken.
    assert text.add(2**63, piece_id if piece_id == 9 else 3, 0, piece(b"y")) is None
    assert held(text) == before


def test_huge_ids_end_what_can_be_sent() -> None:
    text = tree()
    assert text.add(2**64 - 1, 0, 0, piece(b"a")) is not None
    assert text.add(1, 0, 0, piece(b"b")) is None


def test_bounds_hold_and_what_goes_makes_room() -> None:
    few, short = tree(max_pieces=3), tree(max_bytes=5)
    assert few.room == 3
    assert [few.add(n, 0, 0, piece(b"%d" % n)) is not None for n in range(1, 6)] == [True] * 3 + [
        False
    ] * 2
    assert few.add(6, 0, 0, piece(b"1")) is None  # says the same, and has no room either
    assert few.room == 0
    assert short.add(1, 0, 0, piece(b"abc")) is not None
    assert short.add(2, 1, 0, piece(b"def")) is None
    assert short.add(3, 0, 0, piece(b"abc")) is not None  # no byte more
    assert short.add(4, 1, 0, piece(b"de")) is not None
    assert short.add(5, 4, 0, piece(b"", ends=True)) is not None
    for text, data in [(few, b"2"), (short, b"abcx")]:
        text.commit(data)
        assert (text.num_pieces, text.roots) == (0, [])
    assert few.room == 3
    assert short.add(9, 0, 4, piece(b"01234")) is not None


@given(st.lists(st.tuples(st.integers(0, 30), texts, st.booleans()), max_size=30), st.lists(texts))
def test_never_more_is_held_than_the_bounds_say(
    pieces: list[tuple[int, bytes, bool]], committed: list[bytes]
) -> None:
    text = tree(max_pieces=7, max_bytes=10)
    commits = iter(committed)
    for index, (parent, data, ends) in enumerate(pieces):
        text.add(index + 1, parent, text.committed_bytes, piece(data, ends=ends))
        if index % 3 == 2:
            text.commit(next(commits, b""))
        nodes = [found.node for found in text.best_first()]
        assert text.num_pieces == sum(len(node.ids) for node in nodes) <= 7
        assert sum(len(node.text) for node in nodes) <= 10
    text.commit(b"contradicts")
    end = text.committed_bytes
    assert text.add(99, 0, end, piece(b"0123456789")) is not None
    assert text.add(100, 0, end, piece(b"0")) is None


def test_a_thousand_siblings_and_a_long_chain() -> None:
    text = tree(max_pieces=1000)
    for n in range(1, 2001):
        text.add(n, 0, 0, piece(b"%d." % n, -n / 100))
    assert text.num_pieces == 1000
    assert [found.node.id for found in text.best_first()][:3] == [1, 2, 3]
    text.commit(b"7.")
    assert text.num_pieces == 0
    for n in range(3000, 5000):
        text.add(n, n - 1 if n > 3000 else 0, 2, piece(b"x"))
    assert max(found.depth for found in text.best_first()) == 999
    text.commit(b"x" * 1000)
    assert text.num_pieces == 0


def test_late_pieces_are_judged_as_far_back_as_is_remembered() -> None:
    text = tree()
    text.commit(b"a" * (MEMORY_BYTES + 10))
    whole = b"a" * MEMORY_BYTES + b"b"
    assert text.add(1, 0, 9, piece(b"a" + whole)) is None
    assert text.add(2, 0, 10, piece(whole)) is not None
    # What was committed long ago has been forgotten with its id.
    assert text.add(3, 0, text.committed_bytes, piece(b"c")) is not None
    text.commit(b"c")
    assert text.add(4, 3, 0, piece(b"d")) is not None
    text.commit(b"a" * (MEMORY_BYTES + 10))
    assert text.add(5, 3, 0, piece(b"a" * MEMORY_BYTES + b"a" * 10 + b"e")) is None
