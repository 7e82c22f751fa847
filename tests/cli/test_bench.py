"""The flags of `anydraft bench`, and whole runs of it."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import pytest

from anydraft.bench import peer
from anydraft.bench.plan import Step
from anydraft.bench.recordings import read_recordings
from anydraft.cli import bench
from anydraft.cli.bench_flags import check, cores, listed, pair_of, sweep_of
from anydraft.cli.main import _build_parser, main
from anydraft.flags import DTYPES, positive_int
from tests.models.tiny import save_dense


def parse(*words: str) -> argparse.Namespace:
    arguments = ["bench", *words]
    return _build_parser(arguments).parse_args(arguments)


def test_all_know_the_same_precisions() -> None:
    from verify_node import load

    assert set(DTYPES) == {"auto", *load.DTYPES} == set(peer._DTYPES)


def test_a_run_without_flags_is_real() -> None:
    args = parse()
    check(args)
    sweep = sweep_of(args)
    (conditions,) = sweep.of(sweep.steps[0])
    assert (conditions.step, conditions.piece_ms) == (None, None)
    assert (conditions.round_trip_ms, conditions.sessions) == (0.0, 1)
    assert not pair_of(args).remembers


def test_lists_become_every_combination() -> None:
    args = parse(
        *("--simulate", "--answers", "f", "--step-ms", "30,226", "--slope", "0.05,1"),
        *("--round-trip", "0,20,60", "--sessions", "1,4,4", "--piece-ms", "8"),
    )
    sweep = sweep_of(args)
    assert sweep.steps == [Step(30, 0.05), Step(30, 1), Step(226, 0.05), Step(226, 1)]
    assert len(list(sweep.of(sweep.steps[0]))) == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--step-ms", "30"], "--step-ms does nothing without --simulate"),
        (["--piece-ms", "8"], "--piece-ms does nothing without --simulate"),
        (["--answers", "f"], "--answers does nothing without --simulate"),
        (["--simulate"], "--simulate needs recorded answers: name a file with --answers"),
        (["--simulate", "--answers", "f", "--record", "g"], "--record needs a real target"),
        (["--simulate", "--answers", "f", "--verify", "a:1"], "--verify needs a real target"),
        (["--simulate", "--answers", "f", "--suite", "x"], "asks what was recorded"),
        (["--simulate", "--answers", "f", "--temperature", "1"], "drop --temperature"),
        (["--simulate", "--answers", "f", "--peers", "transformers"], "takes a real target"),
        (["--peers", "transformers", "--sessions", "1,4"], "one session"),
        (["--peers", "transformers", "--temperature", "1"], "drop --temperature"),
        (["--peers", "transformers", "--assistant", "random"], "not random"),
        (["--verify", "a:1", "--target-threads", "2"], "drop it, or --verify"),
        (["--target-cores", "9999"], "there is no core 9999 here"),
        (["--json", "missing/file.json"], "cannot be written"),
        (["--page", "."], "cannot be written"),
        (["--simulate", "--answers", "missing.jsonl"], "there is no file missing.jsonl"),
    ],
)
def test_flags_that_do_not_fit_are_told_before_anything_starts(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    "words",
    [["--round-trip", "0,,20"], ["--step-ms", "0"], ["--sessions", "0"], ["--target-cores", "a"]],
)
def test_values_that_are_none_are_refused(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*words)
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_lists_and_cores() -> None:
    assert listed(positive_int)("1, 4,1") == (1, 4)
    assert cores("0,2-4,3") == (0, 2, 3, 4)
    for text in ("", "x", "1-", "-1", "2-1"):
        with pytest.raises(argparse.ArgumentTypeError, match="write numbers such as"):
            cores(text)


def test_a_missing_package_is_told_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None if name == "torch" else name)
    assert main(["bench"]) == 1
    assert "this needs torch: run pip install" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores can be chosen on Linux")
@pytest.mark.real
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_recorded_answers_are_said_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real target is recorded and then simulated: with a simulated assistant, over a network,
    with several sessions, and with an assistant that is of no use."""
    target, suite, answers = save_dense(tmp_path / "tiny"), tmp_path / "s", tmp_path / "a.jsonl"
    prompts = [("Count to ten.", "maths"), ("Name three colours.", "qa")]
    suite.write_text("".join(f'{{"prompt": "{p}", "category": "{c}"}}\n' for p, c in prompts))
    words = ["bench", "--target", str(target), "--max-new-tokens", "12"]
    assert main([*words, "--record", str(answers), "--suite", str(suite)]) == 0
    recorded = read_recordings(answers)
    assert sorted((r.prompt, r.category) for r in recorded) == prompts
    assert all(len(r.margins) == len(r.ids) <= 12 and min(r.margins) >= 0 for r in recorded)

    json_file, page_file = tmp_path / "r.json", tmp_path / "r.html"
    words += ["--simulate", "--answers", str(answers), "--step-ms", "4", "--piece-ms", "1"]
    words += ["--json", str(json_file), "--page", str(page_file)]
    words += ["--choices", str(tmp_path / "choices.jsonl")]
    core = str(min(os.sched_getaffinity(0)))
    more = ["--round-trip", "0,6", "--sessions", "1,2", "--assistant-cores", core]
    assert main([*words, *more]) == 0
    rows = json.loads(json_file.read_text())["simulated"]
    assert [(r["round_trip_ms"], r["sessions"]) for r in rows] == [(0, 1), (0, 2), (6, 1), (6, 2)]
    for row in rows:
        assert row["ids_equal"]
        assert set(row["categories"]) == {"maths", "qa"}
        assert row["gain"] > 0 < row["smallest_gain"]
        assert row["arms"]["target_only"]["rate"] > 0
    assert page_file.read_text().count("<svg") >= 5
    assert "All ids are the target's own." in capsys.readouterr().out

    assert main([*words, "--assistant", "random", "--edges", "--sessions", "2"]) == 0
    (row,) = json.loads(json_file.read_text())["simulated"]
    assert row["ids_equal"]
    assert row["edges"]
