"""Drafted tokens that overflow inside the model: they cost steps, and change nothing."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch

from tests import models_zoo
from tests.verify.test_scheduler import Reader, chain, decided, scheduler_of, start
from verify_node.target import DraftToken, Offer

BROKEN_ID = models_zoo.VOCABULARY - 1
NEW_TOKENS = 12


class _Spoiler(Reader):
    """Drafts the right token, and behind it, or beside it, one that overflows."""

    def _draft(self) -> list[DraftToken]:
        right = self.truth[len(self.ids) :][:1]
        if self.mode == "beside":
            return [DraftToken(token_id, 0.49, -1) for token_id in [*right, BROKEN_ID]]
        return chain([*right, BROKEN_ID], 0.99)


@pytest.mark.parametrize("name", ["llama", "gemma3", "bloom"])
@pytest.mark.parametrize("where", ["behind", "beside"])
@pytest.mark.parametrize("insists", [False, True], ids=["once", "again and again"])
def test_a_draft_that_overflows_costs_one_step_each(
    name: str, where: str, insists: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session takes the step again without it, also when the same draft is offered anew."""
    monkeypatch.setattr("tests.verify.test_scheduler.Reader", _Spoiler)
    model = models_zoo.build(name)
    prompt, truth = decided(model, 5, random.Random(name))
    assert BROKEN_ID not in prompt + truth[:NEW_TOKENS]
    target = scheduler_of(model)
    # Where embeddings are tied, its logits would be broken as well: only what it is read as.
    model.get_output_embeddings().weight = torch.nn.Parameter(
        model.get_output_embeddings().weight.detach().clone()
    )
    model.get_input_embeddings().weight.data[BROKEN_ID] = torch.nan
    forward, rows, started = target.runner.forward, [], threading.Event()

    def counted(step: Any) -> Any:
        started.wait(60)
        rows.append([len(row.token_ids) for row in step])
        if insists:
            reader.session.offer(Offer(len(reader.ids), tuple(reader._draft()), 1))
        return forward(step)

    try:
        monkeypatch.setattr(target.runner, "forward", counted)
        reader = start(target, prompt, truth, where, new_tokens=NEW_TOKENS)
        started.set()
        assert reader.done.wait(60)
        assert reader.error is None
        assert reader.ids == truth[:NEW_TOKENS]
    finally:
        target.close()
    drafted = [step for step in rows if step[0] > 1]
    assert len(drafted) > 1, "no draft was checked"
    assert len(rows) <= 2 * NEW_TOKENS
