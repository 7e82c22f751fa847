"""The likeliest tokens, against sorting everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_node.engines.base import MAX_CHOICES
from draft_node.engines.choices import best_choices


def sorted_choices(row: np.ndarray[Any, Any]) -> tuple[list[int], list[float]]:
    values = row.astype(np.float64)
    order = np.argsort(-values, kind="stable")[:MAX_CHOICES]
    top = values.max()
    total = top + np.log(np.exp(values - top).sum())
    return order.tolist(), (values[order] - total).tolist()


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 7, 8, 9, 600, 2047, 2304, 5000, 49152]),
    st.sampled_from([np.float32, np.float16]),
    st.booleans(),
)
def test_they_are_those_that_sorting_finds(
    seed: int, size: int, dtype: Any, has_ties: bool
) -> None:
    rng = np.random.default_rng(seed)
    row = rng.normal(scale=4, size=size).astype(dtype)
    if has_ties:
        row = np.round(row)
    row[rng.random(size) < 0.2] = -np.inf
    row[int(rng.integers(size))] = 1.0
    ids, logprobs = sorted_choices(row)
    expected = [value for value in logprobs if np.isfinite(value)]
    found = best_choices(row)
    np.testing.assert_allclose(found.logprobs, expected, atol=1e-4)
    # Which of several equals is taken is left open.
    assert row[list(found.token_ids)].tolist() == row[ids[: len(expected)]].tolist()
    assert len(set(found.token_ids)) == len(expected)


def test_what_lies_behind_the_limit_does_not_exist() -> None:
    row = np.linspace(0, 1, 3000, dtype=np.float32)
    row[[5, 2999]] = 3.0, 9.0
    found = best_choices(row, 2990)
    ids, logprobs = sorted_choices(row[:2990])
    assert found.token_ids[0] == 5
    assert list(found.token_ids) == ids
    np.testing.assert_allclose(found.logprobs, logprobs, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("size", [40, 5000])
def test_an_overflow_means_nothing(bad: float, size: int) -> None:
    row = np.zeros(size, np.float32)
    row[17] = bad
    assert best_choices(row).token_ids == best_choices(row).logprobs == ()
    assert best_choices(np.full(size, -np.inf, np.float32)).token_ids == ()
