"""What the demo says of two answers, and one whole demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from anydraft import Client
from anydraft.cli.demo import _parting
from anydraft.cli.demo_report import Parting, Report, Row, total
from anydraft.cli.main import main
from anydraft.v1.result_pb2 import TokenLogprob, TokenLogprobs
from tests.client.fake_node import FakeNode, delta, finished, opened

FP32, BF16 = "ragged float32 on cpu", "ragged bfloat16 on cpu"
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
    ("engine", "parting", "lossless"),
    [
        (FP32, None, True),
        (FP32, NEAR, False),
        (FP32, FAR, False),
        (BF16, None, True),
        (BF16, NEAR, True),
        (BF16, FAR, False),
        (BF16, Parting(3, None), False),
    ],
)
def test_only_near_ties_in_low_precision_may_differ(
    engine: str, parting: Parting | None, lossless: bool
) -> None:
    assert Report("t", "a", engine, 96, [row(), row(parting)]).is_lossless is lossless


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
        assert _parting("Hi", (1, 2, 3), (1, 2, 3), client) is None
        assert not node.requests
        assert _parting("Hi", (1, 2, 3, 7), assisted, client) == Parting(2, margin)
    if len(assisted) > 2:
        assert node.requests[0].spec.logprobs == 2
        assert node.requests[0].spec.stop.max_new_tokens == 3


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
    report = json.loads(file.read_text())
    assert "float32" in report["engine"]
    assert [row["prompt"] for row in report["rows"]] == [*prompts, "all"]
    for found in report["rows"]:
        assert found["identical"]
        assert found["target_only_rate"] > 0 < found["assisted_rate"]
        assert found["wire_bytes"] > 0
