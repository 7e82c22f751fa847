"""What the demo says of two answers, and one whole demo."""

from __future__ import annotations

import io
import json
import shlex
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from anydraft import Client
from anydraft.cli import demo
from anydraft.cli.demo_answers import compare, parting_of
from anydraft.cli.demo_report import Parting, Report, Row, total
from anydraft.cli.main import _build_parser, main
from anydraft.v1.result_pb2 import TokenLogprob, TokenLogprobs
from tests.client.fake_node import FakeNode, delta, finished, opened
from tests.deploy.command_lines import parse

FP32, BF16 = "float32", "bfloat16"
NEAR, FAR = Parting(3, 0.1), Parting(3, 2.0)


def row(parting: Parting | None = None, **values: Any) -> Row:
    settings = {
        "prompt": "Hi",
        "tokens": 10,
        "target_only_rate": 5.0,
        "assisted_rate": 10.0,
        "acceptance": 0.5,
        "tokens_per_round": 2.0,
        "wire_bytes": 100,
        **values,
    }
    return Row(parting=parting, **settings)


@pytest.mark.parametrize(
    ("dtype", "parting", "lossless"),
    [
        (FP32, None, True),
        (FP32, NEAR, False),
        (FP32, FAR, False),
        (BF16, None, True),
        (BF16, NEAR, True),
        (BF16, FAR, False),
        (BF16, Parting(3, None), False),
        ("float16", NEAR, True),
        (None, NEAR, False),
    ],
)
def test_only_near_ties_in_low_precision_may_differ(
    dtype: str | None, parting: Parting | None, lossless: bool
) -> None:
    """The engine's description is for people: what it says of precision is not read."""
    report = Report("t", "a", "packed bfloat16 on float32", dtype, 96, [row(), row(parting)])
    assert report.is_lossless is lossless


def test_all_prompts_as_one() -> None:
    rows = [row(), row(NEAR, tokens=30, target_only_rate=10.0, acceptance=0.9), row(FAR)]
    whole = total(rows)
    assert whole.tokens == 50
    assert whole.target_only_rate == pytest.approx(50 / (2 + 3 + 2))
    assert whole.assisted_rate == pytest.approx(10.0)
    assert whole.acceptance == pytest.approx((5 + 27 + 5) / 50)
    assert whole.parting == FAR


@pytest.mark.parametrize(
    ("assisted", "margin"), [((1, 2, 4, 9), 0.25), ((1, 2, 5, 9), None), ((1, 2), None)]
)
def test_where_answers_part_the_target_is_asked_how_nearly(
    node: FakeNode, assisted: tuple[int, ...], margin: float | None
) -> None:
    top = [TokenLogprob(token_id=3, logprob=-0.5), TokenLogprob(token_id=4, logprob=-0.75)]
    said = TokenLogprobs(logprob=-0.5, top=top)
    node.answer(opened(), delta("abc", 1, 2, 3, logprobs=[said] * 3), finished())
    with Client(node.address) as client:
        assert parting_of("Hi", (1, 2, 3), (1, 2, 3), client) is None
        assert not node.requests
        assert parting_of("Hi", (1, 2, 3, 7), assisted, client) == Parting(2, margin)
    if len(assisted) > 2:
        assert node.requests[0].spec.logprobs == 2
        assert node.requests[0].spec.stop.max_new_tokens == 3


def _console(**settings: Any) -> Console:
    values = {"file": io.StringIO(), "width": 80, "highlight": False, **settings}
    return Console(**values)


def _printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("rows", "dtype", "said"),
    [
        ([row()], FP32, "2.00 times as fast as the target alone, and every one of the 10 tokens"),
        ([row(), row(NEAR)], BF16, "part at near ties only, which bfloat16 rounds"),
        ([row(FAR)], FP32, "must not happen: please report it"),
    ],
)
def test_the_table_fits_a_terminal_and_clips_nothing(
    rows: list[Row], dtype: str, said: str
) -> None:
    console = _console()
    Report("t", "a", "e", dtype, 96, rows).show(console)
    printed = _printed(console)
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 80
    assert said in " ".join(printed.split())
    lines = [line.split() for line in printed.splitlines()]
    assert [line[0] for line in lines if line[-1:] in (["yes"], ["NO"])] == [
        *(str(number) for number in range(1, len(rows) + 1)),
        "all",
    ]


@pytest.mark.parametrize("width", [20, 40, 71, 72, 200])
def test_no_number_is_cut_off_on_a_narrow_terminal(width: int) -> None:
    console = _console(width=width)
    Report("t", "a", "e", FP32, 96, [row(target_only_rate=123.4, assisted_rate=1234.5)]).show(
        console
    )
    printed = _printed(console)
    assert "…" not in printed
    for shown in ("123.4", "1234.5", "10.00x", "yes"):
        assert shown in printed


@pytest.mark.parametrize(
    ("settings", "word", "marks"),
    [
        ({"force_terminal": True, "color_system": "standard", "no_color": False}, "Green", True),
        ({"force_terminal": True, "color_system": "standard", "no_color": True}, "Under", True),
        ({"force_terminal": False}, "on a terminal, accepted drafts are coloured", False),
    ],
)
def test_how_accepted_drafts_are_shown_is_said(
    node: FakeNode, settings: dict[str, Any], word: str, marks: bool
) -> None:
    """Without colours they are underlined; a pipe gets text and nothing else."""
    console = _console(**settings)
    console.print(demo._legend(console))
    assert word in " ".join(_printed(console).split())
    with Client(node.address) as client:
        row = compare("Say [bold]hello[/]", 4, client, client, console)
    assert row.identical
    assert ("\x1b[" in _printed(console)) is marks
    code = "\x1b[4m" if settings.get("no_color") else "\x1b[32m"
    assert (f"{code}He\x1b[0ml" in _printed(console)) is marks


def test_what_a_model_is_said_before_it_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYDRAFT_CACHE", str(tmp_path))
    assert demo._size_of(demo.TARGET) == "(491.4 MB, to be fetched, once)"
    assert demo._size_of("some/repository") == ""


def test_a_missing_package_is_told_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name in ("rich", "torch") else name)
    monkeypatch.setattr(demo, "_start", None)
    assert main(["demo"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "anydraft: this needs rich, torch: run pip install 'anydraft[cli,draft,export,verify]'"
    )


@pytest.mark.parametrize("output", ["", "missing/file.json"])
def test_an_output_that_cannot_be_written_is_told_first(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_start", None)
    assert main(["demo", "--output", str(tmp_path / output)]) == 2
    assert "cannot be written: name a file in a folder" in capsys.readouterr().err


def test_one_model_that_cannot_be_had_ends_the_wait_for_the_other() -> None:
    waiting: Future[Path] = Future()
    other = demo._in_background(lambda: Path("/no/such/folder").resolve(strict=True))
    with pytest.raises(FileNotFoundError):
        demo._is_here(waiting, other, 60)
    here = demo._in_background(lambda: Path("here"))
    assert demo._is_here(here, waiting, 60)
    assert not demo._is_here(waiting, here, 0)


def test_what_goes_on_is_said_now_and_then() -> None:
    console = _console()
    answers = iter([False, False, True])
    doing = iter(["", "loading [weights]"])
    demo._Steps(console).wait(lambda limit_s: next(answers), lambda: next(doing))
    assert _printed(console).split(maxsplit=2) == ["0", "s", "… loading [weights]\n"]


def test_the_last_words_are_commands_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_folder_of_programs", lambda: "")
    console = _console(width=20)
    args = _build_parser(["demo"]).parse_args(["demo"])
    demo._show_next_step(args, console)
    commands = [shlex.split(line) for line in _printed(console).splitlines() if line[:2] == "  "]
    verify, draft, chat = (parse(words) for words in commands)
    assert verify.model == args.target
    assert draft.model == args.assistant
    assert draft.verify == [verify.listen]
    assert chat.server == draft.listen


@pytest.mark.real
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "demo.json"
    prompts = ["Count to ten.", "Name three colours."]
    arguments = ["--target", "smollm2-135m-instruct", "--assistant", "gemma-3-270m"]
    arguments += ["--max-new-tokens", "16", "--output", str(file)]
    for prompt in prompts:
        arguments += ["--prompt", prompt]
    assert main(["demo", *arguments]) == 0
    printed = capsys.readouterr().out
    assert all(prompt in printed for prompt in prompts)
    assert "anydraft chat --server" in printed
    report = json.loads(file.read_text())
    assert report["dtype"] == "float32"
    assert [row["prompt"] for row in report["rows"]] == [*prompts, "all"]
    for found in report["rows"]:
        assert found["identical"]
        assert found["target_only_rate"] > 0 < found["assisted_rate"]
        assert found["wire_bytes"] > 0
