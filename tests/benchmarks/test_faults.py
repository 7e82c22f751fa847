"""The benchmarks' command lines, and what they make of what they measured. No node runs."""

from __future__ import annotations

import json
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType

import pytest

from anydraft.rpc.channel import MAX_MESSAGE_BYTES
from anydraft.rpc.validation import validate_draft
from anydraft.v1.verification_pb2 import Verdict, VerifyRequest
from benchmarks import (
    attacks,
    cancel_opening,
    chat_turns,
    failover,
    faults,
    hostile,
    kv_layout,
    kv_release,
    long_prompt,
    prompt_gap,
    silence,
    soak,
    stop,
)
from benchmarks._common import Findings, machine_facts, parser, run, run_script
from benchmarks._running_answer import GapSummary, summarize
from benchmarks.cancel_opening import Round
from verify_node.session_draft import MAX_CREDIT_PIECES, SessionDraft

SCRIPTS = [
    cancel_opening,
    faults,
    hostile,
    kv_release,
    long_prompt,
    prompt_gap,
    silence,
    stop,
]
ON_THEIR_OWN = [chat_turns, failover, kv_layout, soak]


@pytest.mark.parametrize("script", [*SCRIPTS, *ON_THEIR_OWN], ids=lambda script: script.__name__)
def test_help_says_what_is_measured(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        script.main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert (script.__doc__ or "?").splitlines()[0] in printed
    assert "--short" in printed


@pytest.mark.parametrize("script", [*SCRIPTS, *ON_THEIR_OWN], ids=lambda script: script.__name__)
def test_a_typing_error_is_refused_before_anything_runs(script: ModuleType) -> None:
    with pytest.raises(SystemExit) as ended:
        script.main(["--shrot"])
    assert ended.value.code == 2


def test_all_scripts_are_run_together() -> None:
    assert {*faults.IN_TURN, faults.BESIDE} == {
        script.__name__.removeprefix("benchmarks.") for script in SCRIPTS if script is not faults
    }


@pytest.mark.parametrize("short", [True, False])
def test_the_report_is_printed_and_written(
    short: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "report.json"
    arguments = ["--output", str(file), *(["--short"] if short else [])]
    assert run_script(None, lambda asked: {"asked": asked, "é": 1}, arguments) == 0
    report = json.loads(file.read_text(encoding="utf-8"))
    assert report == json.loads(capsys.readouterr().out)
    assert report["short"] == report["asked"] == short
    assert report["é"] == 1
    assert report["machine"].keys() >= {
        *("cores", "processor", "memory_gb", "python"),
        *("grpcio", "onnxruntime", "torch", "transformers"),
    }


def test_nothing_is_written_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(parser(None).parse_args([]), lambda short: {}) == 0
    assert not list(tmp_path.iterdir())


def test_the_facts_name_no_file_and_no_user() -> None:
    assert str(Path.home()) not in json.dumps(machine_facts())


ARRIVALS = [0.0, 1.0, 2.0, 12.0, 12.0, 13.0]


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (0.5, 1.5, GapSummary(tokens=1, rate=1.0, usual_ms=1000, longest_ms=1000)),
        # A window in the middle of a gap has it whole, and no token.
        (4.0, 8.0, GapSummary(tokens=0, rate=0.0, usual_ms=10_000, longest_ms=10_000)),
        # Two tokens of one step have no gap between them.
        (2.0, 14.5, GapSummary(tokens=4, rate=0.32, usual_ms=1000, longest_ms=10_000)),
    ],
)
def test_gaps_of_a_window(start: float, end: float, found: GapSummary) -> None:
    assert summarize(ARRIVALS, start, end) == found


@pytest.mark.parametrize(("start", "end"), [(13.0, 20.0), (-5.0, 0.0)])
def test_a_window_without_gaps_has_no_summary(start: float, end: float) -> None:
    with pytest.raises(ValueError, match="no two tokens"):
        summarize(ARRIVALS, start, end)


def test_against_the_same_answer_alone() -> None:
    alone = GapSummary(tokens=40, rate=20.0, usual_ms=50.0, longest_ms=60.0)
    beside = GapSummary(tokens=3, rate=5.0, usual_ms=200.126, longest_ms=1000.0)
    assert beside.beside(alone) == {
        "tokens": 3,
        "rate": 5.0,
        "usual_ms": 200.13,
        "longest_ms": 1000.0,
        "longest_over_usual_alone": 20.0,
        "rate_over_alone": 0.25,
    }


def test_who_is_kept_out_for_longer_than_a_step_meets_an_orphan() -> None:
    rounds = [Round(0.0, 0), Round(0.4, 1), Round(7.5, 3)]
    assert cancel_opening.summarize(rounds) == {
        "cancels": 30,
        "rounds": 3,
        "rounds_kept_out": 2,
        "rounds_with_orphans": 1,
        "longest_wait_s": 7.5,
        "most_places_held": 3,
    }


def test_what_all_reports_say_is_said_once() -> None:
    report: Findings = {"machine": {}, "model": "m", "short": True, "runs": [1]}
    assert faults.own_findings(report) == {"runs": [1]}


@pytest.mark.processes
def test_a_script_that_fails_is_reported_with_its_reason(tmp_path: Path) -> None:
    with faults.ScriptProcess("no_such_script", True, tmp_path) as script:
        error = script.findings()["error"]
    assert "No module named benchmarks.no_such_script" in str(error)


def test_the_largest_message_is_one_that_a_node_takes() -> None:
    assert MAX_MESSAGE_BYTES * 0.9 < attacks._empty_pieces().ByteSize() < MAX_MESSAGE_BYTES


def test_an_attack_within_the_credit_sends_nothing_that_is_refused() -> None:
    verdicts: SimpleQueue[Verdict | None] = SimpleQueue()
    texts = ["a", "", "é", "b" * 50]
    base_bytes = 0
    for text in texts:
        verdicts.put(Verdict(base_bytes=base_bytes, text=text, credit_pieces=MAX_CREDIT_PIECES))
        base_bytes += len(text.encode())
    verdicts.put(None)
    sent = [VerifyRequest.FromString(r).draft for r in attacks.within_credit(verdicts)]
    session = SessionDraft(None)
    for text in texts:
        session.commit(text.encode(), 0)
        if text:
            now = [draft for draft in sent if draft.base_bytes == session.committed_bytes]
            assert all(session.take(draft) for draft in now)
            assert session.stale_pieces == 0
    assert sum(len(draft.pieces) for draft in sent) == 3 * MAX_CREDIT_PIECES


def test_an_attack_beyond_the_credit_goes_on_until_the_stream_ends() -> None:
    verdicts: SimpleQueue[Verdict | None] = SimpleQueue()
    requests = attacks.beyond_credit(verdicts)
    verdicts.put(Verdict(text="abc"))
    first, second = (VerifyRequest.FromString(next(requests)).draft for _ in range(2))
    assert first.base_bytes == second.base_bytes == 3
    assert len(first.pieces) > MAX_CREDIT_PIECES
    assert second.first_piece == first.first_piece + len(first.pieces)
    validate_draft(first)
    verdicts.put(None)
    assert list(requests) == []


async def test_the_silent_node_answers_in_the_end() -> None:
    async with silence.silent_node(0.0) as address:
        found = await silence.ask(address)
    assert found["survived"], found["error"]


async def test_an_answer_that_never_comes_did_not_survive() -> None:
    async with silence.silent_node(0.0) as address:
        pass
    found = await silence.ask(address)
    assert not found["survived"]
    assert "UnavailableError" in str(found["error"])
