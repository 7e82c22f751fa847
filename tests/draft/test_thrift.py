"""What a pass must bring on cores that the target uses, too; and drafting in turn with it."""

from __future__ import annotations

import asyncio

import pytest

from anydraft.text import TextTokenizer
from anydraft.text.tree import Piece, TextTree
from anydraft.v1.verification_pb2 import Draft, Verdict
from draft_node.drafters import thrift
from draft_node.drafters.thrift import ReadingPace, Thrift
from draft_node.drafting_loop import DraftingLoop
from draft_node.drafting_thread import DraftingThread


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(thrift.time, "perf_counter", lambda: now[0])
    return now


def measured(clock: list[float], *, round_ms: float, pass_ms: float) -> Thrift:
    """Of an answer that grows by ten bytes a round."""
    it = Thrift(ReadingPace())
    for _ in range(3):
        it.committed(10, 1e6)
        clock[0] += round_ms / 1e3
    it.passed(pass_ms)
    it.looked(4.0)
    return it


def test_a_pass_pays_where_it_brings_more_than_the_answer_grows_by_meanwhile(
    clock: list[float],
) -> None:
    # 10 bytes in 200 ms are half a byte in the 10 ms of a pass: an eighth of what it brings.
    slow = measured(clock, round_ms=200, pass_ms=10)
    assert slow.pays(0.13)
    assert not slow.pays(0.12)
    # 10 bytes in 25 ms are four: all that it could bring.
    assert not measured(clock, round_ms=25, pass_ms=10).pays(0.99)
    assert measured(clock, round_ms=25, pass_ms=1).pays(0.11)


def test_a_slower_target_makes_passes_pay_again(clock: list[float]) -> None:
    it = measured(clock, round_ms=25, pass_ms=10)
    for _ in range(40):
        clock[0] += 0.4
        it.committed(10, 1e6)
    assert it.pays(0.2)


def test_the_likeliest_places_are_looked_at_before_anything_is_known() -> None:
    assert Thrift(ReadingPace()).pays(0.9)
    assert not Thrift(ReadingPace()).pays(0.01)


def test_a_text_is_read_in_one_turn_or_not_at_all(clock: list[float]) -> None:
    pace = ReadingPace()
    it = Thrift(pace)
    it.committed(10, 200.0)
    assert it.needs_ms(1_000) == 0.0, "nobody knows what it takes"
    it.read(100, 50.0)
    assert it.needs_ms(300) == 0.0
    assert it.needs_ms(900) == pytest.approx(450.0)
    clock[0] += 0.1
    assert it.needs_ms(300) == pytest.approx(150.0)
    assert Thrift(pace).needs_ms(900) == 0.0, "of a turn without end"
    it.committed(10, 500.0)
    assert it.needs_ms(900) == 0.0


def test_no_pass_is_begun_that_would_end_behind_the_turn(clock: list[float]) -> None:
    it = measured(clock, round_ms=200, pass_ms=10)
    it.committed(10, 30.0)
    assert it.pays(0.9)
    clock[0] += 0.025
    assert not it.pays(0.9)


def test_what_a_reading_delays_is_not_how_fast_the_answer_grows(clock: list[float]) -> None:
    slow = measured(clock, round_ms=200, pass_ms=10)
    slow.read(1_000, 3_000.0)
    clock[0] += 3.0
    slow.committed(10, 1e6)
    assert slow.pays(0.13)
    assert not slow.pays(0.12)


class ThreePasses:
    """Hangs one piece a pass, and none after the third behind each commit."""

    needs_ms = 0.0

    def __init__(self) -> None:
        self.left = 3

    @property
    def idle(self) -> bool:
        return self.left == 0

    def commit(self, text: str, *, turn_ms: float) -> None:
        self.left = 3

    def worth(self, tree: TextTree) -> float:
        return 1.0

    def grow(self, tree: TextTree, limit: int) -> None:
        self.left -= 1
        tips = [held.node for held in tree.best_first()]
        tree.hang(Piece(b"abc", -0.1), tips[-1] if tips else None)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(("in_turn", "messages"), [(True, [3, 0]), (False, [1, 1, 1])])
async def test_in_turn_all_that_pays_is_sent_together_and_then_that_it_was_all(
    worker: DraftingThread, in_turn: bool, messages: list[int]
) -> None:
    sent: list[int] = []
    complete = asyncio.Event()

    async def send(draft: Draft) -> bool:
        sent.append(len(draft.pieces))
        if len(sent) % len(messages) == 0:
            complete.set()
        return True

    loop = DraftingLoop(ThreePasses(), worker, send, in_turn=in_turn)
    loop.opened(48, 4096)
    running = asyncio.create_task(loop.run())
    for round_number in (1, 2):
        async with asyncio.timeout(5):
            await complete.wait()
        complete.clear()
        assert sent == messages * round_number
        text = "contradicts"
        loop.commit(Verdict(base_bytes=(round_number - 1) * len(text), text=text, credit_pieces=48))
    loop.close()
    await running


async def test_in_turn_what_was_found_while_a_prompt_is_read_is_not_kept_back(
    worker: DraftingThread, tokenizer: TextTokenizer
) -> None:
    """The first pass finds something, the others read on for as long as this test wants."""
    sent = asyncio.Event()
    reads = 0

    class Reader(ThreePasses):
        idle = False

        def grow(self, tree: TextTree, limit: int) -> None:
            nonlocal reads
            if not tree.num_pieces:
                tree.hang(Piece(b"copied", -0.1))
            reads += 1

    async def send(draft: Draft) -> bool:
        sent.set()
        return True

    loop = DraftingLoop(Reader(), worker, send, in_turn=True)
    loop.opened(48, 4096)
    running = asyncio.create_task(loop.run())
    async with asyncio.timeout(5):
        await sent.wait()
    loop.close()
    await running
    assert reads >= 2
