"""The soak's short form, on a tiny target in this process, whose memory is checked as it runs."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import pytest
from transformers import PreTrainedModel

from anydraft.text.tokenizer import TextTokenizer
from benchmarks.soak import Question, Tally, ask, ask_alone, soak, specs
from tests import models_zoo, nodes, tokenizers_zoo
from tests.sampled import drawn_answer
from verify_node.runners.base import Row
from verify_node.scheduler import Scheduler

CLIENTS, EACH = 24, 6


def decided(model: PreTrainedModel, tokenizer: TextTokenizer) -> list[Question]:
    """Whose answers, from plain passes, do not hang on rounding."""
    found: list[Question] = []
    for spec in specs(16, 60, random.Random(1)):
        settings: dict[str, Any] = {"temperature": spec.sampling.temperature}
        if spec.sampling.HasField("seed"):
            settings |= {"top_p": spec.sampling.top_p, "seed": spec.sampling.seed}
        prompt = tokenizer.encode_prompt(spec.prompt)
        truth = drawn_answer(model, prompt, spec.stop.max_new_tokens, **settings)
        if truth is not None:
            found.append(Question(spec, tuple(truth)))
    assert len(found) > 8
    return found


@pytest.mark.parametrize("name", ["qwen3", "bloom"])
def test_every_text_is_the_right_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for some six of 24 clients."""
    model = models_zoo.build(name)
    tokenizer = TextTokenizer(tokenizers_zoo.build("gpt2"))
    served = nodes.served(model, tokenizer, kv_tokens=1200)
    target = served.target
    assert isinstance(target, Scheduler)
    forward, steps = target.runner.forward, []

    def checked(rows: Sequence[Row]) -> Any:
        logits = forward(rows)
        target.check()
        steps.append(len(rows))
        return logits

    monkeypatch.setattr(target.runner, "forward", checked)
    questions = decided(model, tokenizer)
    asked = [question.spec for question in questions]
    with nodes.verify_node(served) as address:
        tally = soak(
            address,
            questions,
            clients=CLIENTS,
            seed=7,
            until=time.monotonic() + 120,
            most=EACH,
        )
        assert tally.wrong == []
        assert ask_alone(address, asked) == questions
        assert target.num_sessions == target.num_waiting == 0
    assert sum(tally.ended.values()) == CLIENTS * EACH
    assert tally.ended["whole"] > CLIENTS * EACH / 3
    assert max(steps) > 3
    target.check()


def test_a_wrong_text_is_found() -> None:
    tokenizer = TextTokenizer(tokenizers_zoo.build("gpt2"))
    served = nodes.served(models_zoo.build("llama"), tokenizer)
    with nodes.verify_node(served) as address:
        (question,) = ask_alone(address, specs(1, 60, random.Random(1)))
        ids = question.truth
        for wrong in ((*ids[:-1], ids[-1] + 1), (*ids, 5), (ids[0] + 1, *ids[1:])):
            tally = Tally()
            for seed in range(12):  # each way to end, some of them before the wrong id
                ask(address, Question(question.spec, wrong), random.Random(seed), tally)
            assert tally.wrong
