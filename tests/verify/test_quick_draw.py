"""The quick draw is the exact one, or none: against inverse transform sampling in doubles."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from verify_node.quick_draw import surely_drawn


def drawn_exactly(scores: torch.Tensor, u: float) -> int:
    cumulative = torch.softmax(scores.double(), dim=-1).cumsum(dim=-1)
    wanted = cumulative.new_tensor([u * float(cumulative[-1])])
    return int(torch.searchsorted(cumulative, wanted, right=True))


def narrowed(scores: torch.Tensor, how: str) -> torch.Tensor:
    values, ids = scores.sort(descending=True)
    match how:
        case "all":
            return scores
        case "top_k":
            kept = ids[:50]
        case "top_p":
            within = int((torch.softmax(values, -1).cumsum(-1) < 0.9).sum()) + 1
            kept = ids[:within]
        case _:
            raise ValueError(how)
    return torch.full_like(scores, -math.inf).scatter(0, kept, scores[kept])


@pytest.mark.parametrize("how", ["all", "top_k", "top_p"])
@pytest.mark.parametrize("size", [3, 512, 5_000, 151_936])
@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0, 40.0])
def test_what_is_drawn_is_what_is_drawn_exactly(how: str, size: int, spread: float) -> None:
    rng = random.Random(f"{how} {size} {spread}")
    generator = torch.Generator().manual_seed(size)
    for _ in range(10):
        scores = torch.randn(size, generator=generator) * spread + rng.uniform(-100, 100)
        scores = narrowed(scores, how)
        cumulative = torch.softmax(scores.double(), dim=-1).cumsum(dim=-1)
        # On the borders of ids as well, where rounding decides.
        borders = [min(float(c), 1 - 2**-53) for c in cumulative[rng.choices(range(size), k=8)]]
        uniforms = [0.0, 1 - 2**-53, *borders, *(rng.random() for _ in range(8))]
        for u in uniforms:
            quick = surely_drawn(scores.numpy(), u)
            assert quick in (None, drawn_exactly(scores, u))


def test_usual_draws_are_sure() -> None:
    """A text's distribution: a few ids have most of it."""
    scores = torch.randn(151_936, generator=torch.Generator().manual_seed(1)) * 3
    scores[[7, 70_000, 151_900]] += torch.tensor([22.0, 21.0, 20.0])
    rng = random.Random(0)
    found = [surely_drawn(scores.numpy(), rng.random()) for _ in range(200)]
    assert sum(token_id is not None for token_id in found) > 180


def test_what_cannot_be_drawn_is_left_to_the_exact_draw() -> None:
    for value in (math.nan, math.inf, -math.inf):
        assert surely_drawn(np.full(1000, value, np.float32), 0.5) is None
