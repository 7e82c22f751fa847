"""Seeds whose answers do not hang on rounding, as `tests.greedy` has decided answers.

A draw that falls on the border between two tokens, or a token on the border of top-p, is decided by
the last bits of the logits, and those differ with the number of rows in one product: a session
alone and one with drafts may then rightly draw differently, once in a few thousand tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import torch
from transformers import PreTrainedModel

from verify_node.sampling_settings import SamplingSettings
from verify_node.token_chooser import TokenChooser

_NOISE = 2e-5
"""In standard deviations of the logits. Rounding stays below 1e-5."""
_TRIES = 6


def decided_seeds(
    model: PreTrainedModel, prompt_ids: Sequence[int], new_tokens: int, **settings: Any
) -> Iterator[int]:
    """Seeds from 1 on, those left out with which noise in the logits changes the answer."""
    seeds = count(1)
    return (s for s in seeds if is_decided(model, prompt_ids, new_tokens, seed=s, **settings))


def is_decided(
    model: PreTrainedModel, prompt_ids: Sequence[int], new_tokens: int, **settings: Any
) -> bool:
    """Whether the answer drawn with these `SamplingSettings` stays what it is under noise."""
    return drawn_answer(model, prompt_ids, new_tokens, **settings) is not None


@torch.inference_mode()
def drawn_answer(
    model: PreTrainedModel, prompt_ids: Sequence[int], new_tokens: int, **settings: Any
) -> list[int] | None:
    """The answer drawn with these `SamplingSettings`, from plain passes over all that stands before
    each token; None when noise changes it. No id ends it."""
    chooser = TokenChooser(SamplingSettings(**settings), prompt_ids, ())
    generator = torch.Generator().manual_seed(0)
    answer: list[int] = []
    for _ in range(new_tokens):
        logits = model(input_ids=torch.tensor([[*prompt_ids, *answer]])).logits[0, -1].float()
        token_id = chooser.choose(logits, answer)
        for _ in range(_TRIES):
            noise = torch.randn(logits.shape, generator=generator) * _NOISE * logits.std()
            if chooser.choose(logits + noise, answer) != token_id:
                return None
        answer.append(token_id)
    return answer
