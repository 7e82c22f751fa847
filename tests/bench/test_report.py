"""What is made of figures: JSON, table, page, sentence."""

from __future__ import annotations

import io
import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from anydraft.bench.arms import PEER_ALONE, PEER_ASSISTED
from anydraft.bench.figures import Figures, figures_of
from anydraft.bench.machine_facts import machine_facts
from anydraft.bench.measures import Difference
from anydraft.bench.page import page
from anydraft.bench.plan import Conditions, Pair, Step, Sweep
from anydraft.bench.plots import Bar, Line, bars, lines, stacks
from anydraft.bench.runs import Busy, Outcome, Run
from anydraft.bench.table import show_legend, show_row
from anydraft.bench.verdict import sentence
from tests.bench.answers import answer, outcome

SAID = {"completion_tokens": 10, "rounds": 10, "verify_ms": 900.0}
DRAFTED = {
    "completion_tokens": 10,
    "rounds": 5,
    "verify_ms": 480.0,
    "wait_ms": 20.0,
    "drafted": 10,
    "accepted": 5,
    "sent_bytes": 500,
}
PARTED = Difference("<Why>", "assisted", 3, 0.0123)


def outcomes() -> list[Outcome]:
    alone = answer(10, 2.0, **SAID)
    return [
        outcome(alone, answer(10, 1.0, **DRAFTED), category="qa"),
        outcome(alone, answer(10, 2.5, **DRAFTED), category="rag", prompt="<Why>"),
    ]


def row(
    *,
    round_trip_ms: float = 20.0,
    sessions: int = 1,
    parted: tuple[Difference, ...] = (),
    run: Run | None = None,
) -> Figures:
    conditions = Conditions(Step(30.0, 0.05), 8.0, round_trip_ms, sessions, edges=False)
    return figures_of(conditions, run or Run(outcomes()), parted)


def report(*rows: Figures) -> dict[str, Any]:
    return {
        "machine": machine_facts(),
        "pair": {"target": "big", "assistant": "small", "dtype": "auto"},
        "simulated": list(rows),
        "real": None,
        "real_rows": [],
        "verdict": sentence("big", "small", rows),
    }


def test_a_row_holds_what_the_json_promises() -> None:
    figures = json.loads(json.dumps(row()))
    assert figures["step_ms"] == 30.0
    assert (figures["piece_ms"], figures["round_trip_ms"], figures["sessions"]) == (8.0, 20.0, 1)
    assert figures["gain"] == pytest.approx(4 / 3.5)
    assert figures["smallest_gain"] == pytest.approx(0.8)
    assert figures["smallest_gain_prompt"] == "<Why>"
    assert figures["tokens_per_step"] == 2.0
    assert figures["acceptance"] == 0.5
    assert figures["bytes_per_accepted_token"] == 100.0
    assert figures["ids_equal"] is True
    assert figures["first_token_ratio"] == 1.0
    assert figures["categories"]["qa"]["gain"] == pytest.approx(2.0)
    assert figures["categories"]["rag"]["smallest_gain"] == pytest.approx(0.8)
    assert figures["arms"]["target_only"]["rate"] == pytest.approx(5.0)
    assert figures["round"]["assisted"]["waiting_ms"] == 5.0
    assert "peer_gain" not in figures


def test_several_sessions_gain_what_all_of_them_get() -> None:
    busy = {"target_only": [Busy(2.0, 20)], "assisted": [Busy(1.0, 15)]}
    figures = row(sessions=4, run=Run(outcomes(), busy))
    assert figures["gain"] == pytest.approx(1.5)
    assert figures["arms"]["assisted"]["rate_of_all_sessions"] == 15.0


def test_peers_are_held_against_their_own_generate_and_ours() -> None:
    found = outcomes()
    for of_prompt in found:
        of_prompt.add(PEER_ALONE, answer(10, 4.0))
        of_prompt.add(PEER_ASSISTED, answer(10, 3.0))
    figures = row(run=Run(found))
    assert figures["peer_gain"] == pytest.approx(6 / 3.5)
    assert figures["peer_own_gain"] == pytest.approx(4 / 3)
    assert figures["gain_over_peer_alone"] == pytest.approx(8 / 3.5)


def test_every_difference_is_kept() -> None:
    figures = row(parted=(PARTED,))
    assert figures["ids_equal"] is False
    assert figures["differences"] == [
        {"prompt": "<Why>", "arm": "assisted", "index": 3, "margin": 0.0123}
    ]


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_fits_a_terminal(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show_row(console, row(parted=(PARTED,), run=Run(outcomes(), incomplete=1, missed=7)))
    show_legend(console)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert "…" not in printed
    for said in (
        "step 30 ms, slope 0.05, piece 8 ms, round trip 20 ms",
        "1.14",
        "5.0 alone, 5.7 assisted",
        "120.0 in the model, 5.0 waiting",
        "100 bytes",
        "assisted parts at token 3 of '<Why>', where the target's own led by 0.012 nats",
        "did not know 7 choices",
    ):
        assert said in printed


def test_a_row_of_single_tokens_says_what_cannot_be_said() -> None:
    console = Console(file=io.StringIO(), width=80)
    show_row(console, row(run=Run([outcome(answer(1, 1.0), answer(1, 1.0))])))
    assert isinstance(console.file, io.StringIO)
    assert "one step each" in console.file.getvalue()
    assert "<svg" in page(report(row(run=Run([outcome(answer(1, 1.0), answer(1, 1.0))]))))


def test_the_page_stands_alone_and_escapes_what_it_shows() -> None:
    rows = [row(round_trip_ms=ms, parted=(PARTED,)) for ms in (0.0, 20.0, 60.0)]
    shown = page(report(*rows))
    assert shown.startswith("<!doctype html>")
    assert "<Why>" not in shown
    assert "&lt;Why&gt;" in shown
    assert not re.findall(r"(?:src|href)=|@import|url\(", shown)
    assert set(re.findall(r"https?://[^\"' ]+", shown)) == {"http://www.w3.org/2000/svg"}
    assert "prefers-color-scheme: dark" in shown
    assert report(*rows)["verdict"] in shown
    plots = re.findall(r"<svg.*?</svg>", shown, re.DOTALL)
    assert len(plots) == 1 + 2 * len(rows)
    for plot in plots:
        ElementTree.fromstring(plot)
    # One line over three round trips, marked at each.
    assert plots[0].count("<polyline") == 1
    assert plots[0].count("<circle") == 3


def test_plots_put_things_in_their_place() -> None:
    one = ElementTree.fromstring(lines([Line("a", [(0, 1.0), (10, 2.0)])], "x", "y"))
    circles = one.findall("{*}circle")
    first, last = ((float(c.attrib["cx"]), float(c.attrib["cy"])) for c in circles)
    assert first[0] < last[0]
    assert first[1] > last[1]
    drawn = ElementTree.fromstring(bars([Bar("a", 1.0, 0.5), Bar("b", 2.0, None)], "gain"))
    wide = [float(rect.attrib["width"]) for rect in drawn.findall("{*}rect")]
    assert wide[1] == pytest.approx(2 * wide[0], rel=0.01)
    parts = [("alone", [("model", 30.0), ("rest", -1.0)]), ("assisted", [("model", 15.0)])]
    stacked = ElementTree.fromstring(stacks(parts))
    wide = [float(rect.attrib["width"]) for rect in stacked.findall("{*}rect")]
    assert wide[:3] == pytest.approx([520.0, 0.0, 260.0])
    assert lines([], "x", "y") == bars([], "gain") == ""


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([(0, 1.6), (20, 1.4)], "It pays: "),
        ([(0, 1.6), (60, 0.9)], "It pays in part: "),
        ([(0, 1.01)], "It hardly matters: "),
        ([(0, 0.9)], "It does not pay: "),
    ],
)
def test_the_sentence(gains: list[tuple[float, float]], said: str) -> None:
    rows = [row(round_trip_ms=ms) | {"gain": gain} for ms, gain in gains]
    words = sentence("big", "small", rows)
    assert words.startswith(f"{said}drafting for big with small makes answers ")
    for ms, gain in gains:
        assert f"{gain:.2f}x as fast at a round trip of {ms} ms" in words
    assert "slowest single prompt got 0.80x" in words
    assert "keeps 0.80 of its own speed" not in words
    assert "of its own speed at least" in sentence("big", "random", rows)
    assert "nothing can be said" in sentence("big", "small", [])


def test_a_sweep_is_every_combination() -> None:
    sweep = Sweep([Step(30, 0.05)], [8.0, None], [0.0, 20.0], [1, 4], edges=True)
    found = [(c.round_trip_ms, c.piece_ms, c.sessions) for c in sweep.of(sweep.steps[0])]
    assert len(set(found)) == len(found) == 8
    assert [c.num_draft_nodes for c in sweep.of(None)] == [1, 4] * 4


def test_who_shares_cores() -> None:
    assert Pair("t", "a").shares_cores
    assert Pair("t", "a", target_cores=(0, 1), assistant_cores=(1,)).shares_cores
    assert not Pair("t", "a", target_cores=(0,), assistant_cores=(1,)).shares_cores
    assert not Pair("t", "a", verify_address="far:1").shares_cores
