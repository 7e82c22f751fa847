"""`transformers` generate as the truth, where its arithmetic decides the ids.

Two logits closer than fp32 rounds are ordered by the machine: another CPU, or another number of
rows in one product, and `generate` itself says something else. Random weights, unlike trained ones,
come that close once in a few thousand tokens. Tests compare ids on answers that are decided.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

_MARGIN = 1e-4
"""Between the two best scores, in standard deviations of all. Rounding stays below 1e-5."""


def generate(model: PreTrainedModel, prompt_ids: Sequence[int], **options: object) -> list[int]:
    """The ids of the greedy answer."""
    return _generate(model, prompt_ids, **options)[0]


def decided_answer(
    model: PreTrainedModel, prompt_ids: Sequence[int], **options: object
) -> list[int] | None:
    """The same; None when a token of it is ahead of the next best by no more than rounding."""
    ids, margin = _generate(model, prompt_ids, **options)
    return ids if margin > _MARGIN else None


def _generate(
    model: PreTrainedModel, prompt_ids: Sequence[int], **options: object
) -> tuple[list[int], float]:
    ids = torch.tensor([list(prompt_ids)])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    scores = torch.cat(out.scores).double()
    best, second = scores.topk(2).values.unbind(-1)
    finite = torch.where(scores.isfinite(), scores, scores.new_tensor(torch.nan))
    spread = (finite - finite.nanmean(-1, keepdim=True)).square().nanmean(-1).sqrt()
    margin = ((best - second) / spread).min().item()
    return out.sequences[0, len(prompt_ids) :].tolist(), margin
