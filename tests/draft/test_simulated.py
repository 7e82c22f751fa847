"""Simulated assistants: their pace, their memory, and what they share with real ones."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path as FilePath

import pytest

from anydraft.bench.memory import Memory
from anydraft.errors import (
    AnydraftError,
    ContextFullError,
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
)
from draft_node.engines.base import AssistantState, Choices, Path
from draft_node.simulated.__main__ import Simulation
from draft_node.simulated.choices_file import ChoicesFile, key_of
from draft_node.simulated.engine import SimulatedEngine
from draft_node.simulated.facts import EngineFacts
from draft_node.simulated.notes import Notes
from draft_node.simulated.oracles import NonsenseOracle, RecordedOracle
from draft_node.simulated.pace import Pace
from draft_node.simulated.useless_engine import UselessEngine

FACTS = EngineFacts("real", 64, 1000, frozenset({3}))
INSTANT = Pace(1e-6)


def choices_of(ids: Sequence[int]) -> Choices:
    """What the made-up assistant chooses: a function of all ids before."""
    return Choices(((sum(ids) * 7 + len(ids)) % 1000, 5), (-0.5, -1.0))


class RealEngine:
    """An assistant that notes what it computes."""

    description, context_tokens, vocab_size = FACTS.description, 64, 1000
    eos_ids = FACTS.eos_ids
    max_paths, chunk_tokens = 2, 4

    def __init__(self) -> None:
        self.log: list[str] = []

    def open(self) -> RealState:
        self.log.append("open")
        return RealState(self)


class RealState:
    def __init__(self, engine: RealEngine) -> None:
        self._engine = engine
        self.trunk: list[int] = []

    @property
    def length(self) -> int:
        return len(self.trunk)

    def read(self, ids: Sequence[int], *, wanted: bool) -> Choices | None:
        assert 0 < len(ids) <= self._engine.chunk_tokens
        self._engine.log.append(f"read {len(ids)}")
        self.trunk += ids
        return choices_of(self.trunk) if wanted else None

    def expand(self, paths: Sequence[Path]) -> list[Choices]:
        assert self.trunk
        assert 0 < len(paths) <= self._engine.max_paths
        assert all(paths)
        self._engine.log.append(f"expand {len(paths)}")
        return [choices_of([*self.trunk, *path]) for path in paths]

    def advance(self, path: Path) -> int:
        self.trunk += path
        return len(path)

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self.length
        del self.trunk[length:]

    def close(self) -> None:
        self._engine.log.append("close")


def opened(path: FilePath, real: RealEngine, notes: FilePath | None = None) -> AssistantState:
    oracle = RecordedOracle(ChoicesFile(path), lambda: real, Notes(notes))
    return SimulatedEngine(oracle, INSTANT).open()


def play(state: AssistantState) -> list[Choices | None]:
    """A session: a prompt in two chunks, two passes, a verdict, a rejection, more."""
    found: list[Choices | None] = []
    found.append(state.read([1, 2, 4, 5, 6, 7], wanted=False))
    found.append(state.read([8], wanted=True))
    found += state.expand([(10,), (11,), (10, 12)])
    assert state.advance((10, 12, 99)) == 2
    found += state.expand([(13,)])
    state.truncate(7)
    found.append(state.read([20], wanted=True))
    found += state.expand([(10,), (11,)])
    state.close()
    return found


EXPECTED = [
    None,
    choices_of([1, 2, 4, 5, 6, 7, 8]),
    *(choices_of([1, 2, 4, 5, 6, 7, 8, *path]) for path in ([10], [11], [10, 12])),
    choices_of([1, 2, 4, 5, 6, 7, 8, 10, 12, 13]),
    choices_of([1, 2, 4, 5, 6, 7, 8, 20]),
    *(choices_of([1, 2, 4, 5, 6, 7, 8, 20, token_id]) for token_id in (10, 11)),
]
NOT_KNOWN = Choices((), ())


def test_it_learns_from_the_real_one_between_sessions_and_then_knows(tmp_path: FilePath) -> None:
    """In the first session nothing is known and nothing computed; later the real one is not even
    loaded."""
    path, real = tmp_path / "choices.jsonl", RealEngine()
    assert play(opened(path, real)) == [None, *[NOT_KNOWN] * (len(EXPECTED) - 1)]
    assert (real.log[0], real.log[-1]) == ("open", "close")
    size = path.stat().st_size

    def never() -> RealEngine:
        raise AssertionError("the real assistant was loaded for what was known")

    oracle = RecordedOracle(ChoicesFile(path), never, Notes(None))
    assert oracle.facts == FACTS
    assert play(SimulatedEngine(oracle, INSTANT).open()) == EXPECTED
    assert path.stat().st_size == size


def test_the_real_one_works_while_no_session_is_open(tmp_path: FilePath) -> None:
    """And chooses also what would be asked for next."""
    path, real = tmp_path / "choices.jsonl", RealEngine()
    oracle = RecordedOracle(ChoicesFile(path), lambda: real, Notes(None))
    engine = SimulatedEngine(oracle, INSTANT)
    one, other = engine.open(), engine.open()
    one.read([1, 2], wanted=True)
    other.read([1, 2], wanted=True)
    one.close()
    one.close()
    assert real.log == []
    other.close()
    assert real.log == ["open", "read 2", "expand 2", "close"]
    again = engine.open()
    assert again.read([1, 2], wanted=True) == choices_of([1, 2])
    best = choices_of([1, 2]).token_ids[0]
    assert again.expand([(best,), (5,)]) == [choices_of([1, 2, best]), choices_of([1, 2, 5])]
    again.close()
    assert len(real.log) == 4


async def test_whoever_follows_the_notes_knows_what_was_missed(tmp_path: FilePath) -> None:
    path, notes = tmp_path / "choices.jsonl", tmp_path / "notes.jsonl"
    play(opened(path, RealEngine(), notes))
    memory = Memory(notes)
    assert memory.missed() == 0
    await memory.filled()
    state = opened(path, RealEngine(), notes)
    state.read([30], wanted=True)
    state.expand([(40,), (41,)])
    assert memory.missed() == 3
    filled = asyncio.create_task(memory.filled())
    await asyncio.sleep(0.2)
    assert not filled.done()
    state.close()
    await filled
    assert Memory(tmp_path / "missing").missed() == 0


def test_what_others_added_is_found(tmp_path: FilePath) -> None:
    path = tmp_path / "choices.jsonl"
    first, second = RealEngine(), RealEngine()
    one, other = opened(path, first), opened(path, second)
    one.read([1], wanted=True)
    one.close()
    assert other.read([1], wanted=True) == choices_of([1])
    other.close()
    assert second.log == []


def test_a_line_that_was_cut_off_is_chosen_again(tmp_path: FilePath) -> None:
    path = tmp_path / "choices.jsonl"
    file = ChoicesFile(path)
    file.begin(FACTS)
    file.add([key_of([1]), key_of([2])], [choices_of([1]), choices_of([2])])
    path.write_bytes(path.read_bytes()[:-9])
    again = ChoicesFile(path)
    assert again.get(key_of([1])) == choices_of([1])
    assert again.get(key_of([2])) is None
    again.add([key_of([2]), key_of([3])], [choices_of([2]), choices_of([3])])
    last = ChoicesFile(path)
    assert last.get(key_of([3])) == choices_of([3])


def test_another_file_is_no_memory(tmp_path: FilePath) -> None:
    path = tmp_path / "choices.jsonl"
    path.write_text('{"prompt": "x"}\n')
    with pytest.raises(FailedPreconditionError, match=r"cannot hold .* delete it"):
        ChoicesFile(path)
    with pytest.raises(FailedPreconditionError, match="cannot hold"):
        ChoicesFile(tmp_path).catch_up()


def test_keys_tell_sequences_apart() -> None:
    assert key_of([1, 2], [3]) == key_of([1], [2, 3]) == key_of([1, 2, 3])
    assert len({key_of(ids) for ids in ([], [1], [2], [1, 2], [2, 1], [258], [1, 0])}) == 7


def test_the_file_is_lines_of_json(tmp_path: FilePath) -> None:
    path = tmp_path / "choices.jsonl"
    notes = tmp_path / "notes.jsonl"
    state = opened(path, RealEngine(), notes)
    state.read([1], wanted=True)
    state.close()
    head, entry, *_ = (json.loads(line) for line in path.read_text().splitlines())
    assert head == FACTS.as_json()
    assert notes.read_text() == '{"missed":1}\n{"filled":1}\n'
    assert entry == {"k": key_of([1]), "i": [8, 5], "p": [-0.5, -1.0]}


@pytest.mark.parametrize(
    ("nodes", "relative"), [(0, 0), (1, 1), (2, 1.1), (4, 1.3), (8, 2.06), (16, 3.58)]
)
def test_what_a_pass_takes(nodes: int, relative: float) -> None:
    assert Pace(10.0).pass_ms(nodes) == pytest.approx(10 * relative)


def test_reading_is_cheaper_than_branching() -> None:
    assert Pace(10.0).read_ms(1) == 10.0
    assert 30 <= Pace(10.0).read_ms(32) <= 40


def test_passes_take_their_time() -> None:
    """By what is new in them: a path whose parent is held is one more node."""
    state = SimulatedEngine(NonsenseOracle(FACTS), Pace(20.0)).open()
    began = time.perf_counter()
    state.read([1], wanted=True)
    state.expand([(5, 6, 7, 8)])
    assert time.perf_counter() - began >= 0.02 + 0.026
    began = time.perf_counter()
    state.expand([(5, 6, 7, 8, 9)])
    assert time.perf_counter() - began >= 0.02


def test_branches_below_the_new_trunk_stay() -> None:
    state = SimulatedEngine(NonsenseOracle(FACTS), INSTANT).open()
    state.read([1], wanted=False)
    state.expand([(5, 6), (7,)])
    assert state.advance((9,)) == 0
    assert state.advance((5,)) == 1
    assert state.length == 2
    assert state.advance((6,)) == 1
    assert state.advance((7,)) == 0
    state.truncate(1)
    assert state.advance((5,)) == 0


def test_it_refuses_what_a_real_one_refuses() -> None:
    state = SimulatedEngine(NonsenseOracle(FACTS), INSTANT).open()
    with pytest.raises(ContextFullError):
        state.read([1] * 65, wanted=True)
    with pytest.raises(InternalError):
        state.read([], wanted=True)
    with pytest.raises(InternalError):
        state.read([1000], wanted=True)
    assert state.length == 0
    state.read([1] * 63, wanted=True)
    state.expand([(5,)])
    with pytest.raises(ContextFullError):
        state.expand([(6,)])
    with pytest.raises(InternalError):
        state.truncate(64)
    state.close()
    with pytest.raises(InternalError):
        state.read([1], wanted=True)


def test_nonsense_is_sure_of_itself_and_repeats_itself() -> None:
    state = SimulatedEngine(NonsenseOracle(FACTS), INSTANT).open()
    said = state.read([1], wanted=True)
    (below,) = state.expand([(5,)])
    assert said is not None
    assert said.token_ids != below.token_ids
    for choices in (said, below):
        assert len(set(choices.token_ids)) == len(choices.logprobs) == 3
        assert not set(choices.token_ids) & FACTS.eos_ids
        assert choices.logprobs[0] > -0.5
    assert state.expand([(5,)]) == [below]


def test_a_useless_assistant_works_as_hard_as_a_real_one() -> None:
    real = RealEngine()
    engine = UselessEngine(real)
    assert (engine.max_paths, engine.chunk_tokens, engine.vocab_size) == (2, 4, 1000)
    state = engine.open()
    assert state.read([1, 2], wanted=False) is None
    said = [state.read([4], wanted=True), *state.expand([(5,), (6,)])]
    assert state.advance((5,)) == 1
    assert state.length == 4
    state.truncate(1)
    state.close()
    assert real.log == ["open", "read 2", "read 1", "expand 2", "close"]
    true = [choices_of(ids) for ids in ([1, 2, 4], [1, 2, 4, 5], [1, 2, 4, 6])]
    for found, expected in zip(said, true, strict=True):
        assert found is not None
        assert found.token_ids[0] != expected.token_ids[0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((None, None, None, False), "nothing is simulated"),
        ((8.0, None, None, False), "needs a memory"),
    ],
)
def test_a_simulation_of_nothing_is_refused(
    settings: tuple[float | None, FilePath | None, FilePath | None, bool], said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said) as caught:
        Simulation(*settings)
    assert isinstance(caught.value, AnydraftError)
