"""A target that takes its time and says what was recorded, whatever is drafted."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from anydraft.bench.recordings import Recording, write_recordings
from anydraft.errors import InvalidRequestError
from tests.models.tiny import save_dense
from verify_node.runners.base import Row
from verify_node.simulated.load import SimulationOptions, load
from verify_node.simulated.peaked_logits import PEAK, LogitsPool, PeakedLogits
from verify_node.simulated.runner import SimulatedRunner
from verify_node.simulated.script import ANYTHING, Script, Scripts
from verify_node.simulated.step_time import StepTime

VOCABULARY = 50
PROMPT, ANSWER = (7, 8, 9), (21, 22, 23, 24)
INSTANT = StepTime(1e-6, 0.0)


def runner(*scripts: Script) -> SimulatedRunner:
    return SimulatedRunner(Scripts(scripts or [Script(PROMPT, ANSWER)]), INSTANT, VOCABULARY)


def said(logits: torch.Tensor) -> list[int]:
    return logits.argmax(dim=-1).tolist()


def test_an_answer_is_said_token_by_token() -> None:
    r = runner()
    cache = r.new_cache(20)
    (logits,) = r.forward([Row(cache, PROMPT, 1)])
    found = said(logits)
    while len(found) < len(ANSWER):
        (logits,) = r.forward([Row(cache, found[-1:], 1)])
        found += said(logits)
    assert tuple(found) == ANSWER
    (logits,) = r.forward([Row(cache, ANSWER[-1:], 1)])
    assert said(logits) == [ANYTHING]
    assert cache.length == len(PROMPT) + len(ANSWER)


def test_a_prompt_in_chunks_is_known_with_its_last_token() -> None:
    r = runner()
    cache = r.new_cache(20)
    assert r.forward([Row(cache, PROMPT[:2], 0)])[0].shape == (0, VOCABULARY)
    assert said(r.forward([Row(cache, PROMPT[2:], 1)])[0]) == [21]


def test_a_draft_is_followed_as_far_as_it_is_right() -> None:
    r = runner()
    cache = r.new_cache(20)
    r.forward([Row(cache, PROMPT, 1)])
    (logits,) = r.forward([Row(cache, (21, 22, 40, 24), 4)])
    assert said(logits) == [22, 23, ANYTHING, ANYTHING]
    cache.truncate(len(PROMPT) + 2)
    assert said(r.forward([Row(cache, (23,), 1)])[0]) == [24]


def test_a_tree_is_followed_by_path() -> None:
    """Right: 21 (0) - 22 (2) - 23 (4). Beside it: 40 (1), 23 (3) below 40, 41 (5) below 22."""
    r = runner()
    cache = r.new_cache(20)
    r.forward([Row(cache, PROMPT, 1)])
    ids, parents = (21, 40, 22, 23, 23, 41), (-1, -1, 0, 1, 2, 2)
    (logits,) = r.forward([Row(cache, ids, 6, parents)])
    assert said(logits) == [22, ANYTHING, 23, ANYTHING, 24, ANYTHING]
    cache.keep(len(PROMPT), [0, 2, 4])
    assert cache.length == len(PROMPT) + 3
    assert said(r.forward([Row(cache, (24,), 1)])[0]) == [ANYTHING]
    cache.truncate(len(PROMPT))
    assert said(r.forward([Row(cache, (21,), 1)])[0]) == [22]


def test_a_tree_may_hang_below_the_last_token_of_a_prompt() -> None:
    r = runner()
    cache = r.new_cache(20)
    r.forward([Row(cache, PROMPT[:2], 0)])
    (logits,) = r.forward([Row(cache, (9, 21, 40, 22), 4, (-1, 0, 0, 1))])
    assert said(logits) == [21, 22, ANYTHING, 23]


def test_sessions_in_one_step_do_not_mix() -> None:
    r = runner(Script((1, 2), (3, 4)), Script((1, 2, 5), (6, 7)))
    one, other, unknown = (r.new_cache(9) for _ in range(3))
    rows = [Row(one, (1, 2), 1), Row(other, (1, 2, 5), 1), Row(unknown, (9, 9), 2)]
    assert [said(logits) for logits in r.forward(rows)] == [[3], [6], [ANYTHING, ANYTHING]]


def test_the_longest_prompt_that_fits_is_followed_and_two_answers_to_one_are_refused() -> None:
    scripts = Scripts([Script((1,), (2, 3)), Script((1, 2), (4,))])
    assert scripts.find([1, 2, 9]) == Script((1, 2), (4,))
    assert scripts.find([1, 9]) == Script((1,), (2, 3))
    assert scripts.find([9]) is None
    with pytest.raises(InvalidRequestError, match="have the same prompt"):
        Scripts([Script((1,), (2,)), Script((1,), (3,))])


def test_a_foreign_cache_is_refused() -> None:
    class Foreign:
        length = 0

    with pytest.raises(TypeError, match="cannot use a Foreign"):
        runner().forward([Row(Foreign(), (1,), 1)])  # type: ignore[arg-type]


def test_peaks_are_where_an_ordinary_tensor_has_them() -> None:
    """Also for what knows nothing of them, and after the memory was used again."""
    pool = LogitsPool(VOCABULARY)
    for ids in ((3, 1, 4), (1, 5), (9, 2, 6, 5, 3, 5, 8), ()):
        pool.take(ids)
        logits = pool.rows(0, len(ids))
        plain = torch.zeros(len(ids), VOCABULARY)
        plain[torch.arange(len(ids)), list(ids)] = PEAK
        assert torch.equal(torch.Tensor(logits.tolist()).reshape(plain.shape), plain)
        if ids:
            for found, expected in zip(logits.max(dim=-1), plain.max(dim=-1), strict=True):
                assert torch.equal(found, expected)
            assert torch.equal(logits.amax(dim=-1), plain.amax(dim=-1))
            assert torch.equal(logits.argmax(dim=-1), plain.argmax(dim=-1))
            assert torch.equal(logits.argmax(), plain.argmax())
            assert torch.equal(logits[1:].argmax(dim=-1), plain[1:].argmax(dim=-1))
            assert int(logits[0].argmax()) == ids[0]


@pytest.mark.parametrize("temperature", [0.1, 1.0, 100.0])
def test_no_temperature_draws_another_token(temperature: float) -> None:
    pool = LogitsPool(151_936)
    pool.take([77])
    probabilities = torch.softmax(pool.rows(0, 1)[0].double() / temperature, dim=-1)
    assert float(probabilities[77]) == 1.0
    assert not isinstance(probabilities, PeakedLogits)


def test_what_a_step_takes() -> None:
    step = StepTime(30.0, 0.05)
    assert step.ms(1) == 30.0
    assert step.ms(17) == pytest.approx(31.5)
    assert StepTime(30.0, 1.0).ms(17) == pytest.approx(60.0)
    assert step.ms(1, 16) == pytest.approx(31.5)
    assert step.ms(1, 64) == pytest.approx(36.0)
    assert step.ms(1, 64 + 512) == pytest.approx(72.0)


def test_a_step_takes_that_long_and_no_core() -> None:
    r = SimulatedRunner(Scripts([]), StepTime(40.0, 1.0), VOCABULARY)
    cache = r.new_cache(99)
    began, busy = time.perf_counter(), time.thread_time()
    r.forward([Row(cache, list(range(17)), 17)])
    assert time.perf_counter() - began >= 0.08
    assert time.thread_time() - busy < 0.08


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_dense(tmp_path_factory.mktemp("tiny"))


def _options(folder: Path, *recordings: Recording) -> SimulationOptions:
    path = folder / "answers.jsonl"
    write_recordings(path, recordings)
    return SimulationOptions(str(folder), path, INSTANT)


def test_answers_of_another_target_are_refused(folder: Path) -> None:
    for recording, match in (
        (Recording("qa", "Why?", (5,), "other"), "recorded with other, not"),
        (Recording("qa", "Why?", (10**6,)), "the id 1000000, which"),
    ):
        with pytest.raises(InvalidRequestError, match=match):
            load(_options(folder, recording))


def test_what_ended_a_recorded_answer_ends_it_again(folder: Path) -> None:
    recordings = [Recording("qa", "Why?", (5, 6, 9), ended=True), Recording("qa", "How?", (5, 8))]
    served = load(_options(folder, *recordings))
    try:
        end = served.tokenizer.encode("<|im_end|>")
        assert set(served._defaults.eos_ids) == {9, *end}
        assert served.target.facts.description == "simulated, 1e-06 ms a step, 2 answers"
    finally:
        served.close()
