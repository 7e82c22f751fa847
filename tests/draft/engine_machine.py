"""Any engine, driven at random, against plain passes of the same weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from draft_node.engines.base import MAX_CHOICES, AssistantEngine, Choices, Path

Reference = Callable[[tuple[int, ...]], "np.ndarray[Any, Any]"]
"""Ids to the log-probabilities of what follows them, [vocabulary]."""

_TOKENS = st.integers(3, 12)
"""Few, so that paths meet."""


def log_softmax(logits: Any) -> np.ndarray[Any, Any]:
    values = np.asarray(logits, np.float64)
    values = values - values.max()
    return values - np.log(np.exp(values).sum())


def torch_reference(model: Any) -> Reference:
    """The model itself, in one pass without a cache."""
    import torch

    def after(ids: tuple[int, ...]) -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            return log_softmax(model(torch.tensor([ids]), use_cache=False).logits[0, -1].numpy())

    return after


def assert_choices(found: Choices | None, expected: np.ndarray[Any, Any], atol: float) -> None:
    assert found is not None
    count = min(MAX_CHOICES, len(expected))
    assert len(set(found.token_ids)) == len(found.token_ids) == len(found.logprobs) == count
    assert list(found.logprobs) == sorted(found.logprobs, reverse=True)
    np.testing.assert_allclose(found.logprobs, expected[list(found.token_ids)], atol=atol)
    np.testing.assert_allclose(found.logprobs, np.sort(expected)[::-1][:count], atol=atol)


def drive(
    engine: AssistantEngine,
    reference: Reference,
    *,
    atol: float = 1e-3,
    most_tokens: int,
    examples: int = 12,
) -> None:
    """Reads, expands, advances and cuts at random, `most_tokens` at most at a time."""
    memo: dict[tuple[int, ...], np.ndarray[Any, Any]] = {}

    class Machine(EngineMachine):
        pass

    Machine.engine, Machine.most_tokens, Machine.atol = engine, most_tokens, atol
    Machine.after = staticmethod(lambda ids: memo.setdefault(ids, reference(ids)))
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


class EngineMachine(RuleBasedStateMachine):
    engine: ClassVar[AssistantEngine]
    after: ClassVar[Reference]
    most_tokens: ClassVar[int]
    atol: ClassVar[float]

    def __init__(self) -> None:
        super().__init__()
        self.state = self.engine.open()
        self.trunk: list[int] = []
        self.held: set[Path] = set()
        """With max_paths 1 those of the last path alone, which are held at least."""

    def teardown(self) -> None:
        self.state.close()

    @rule(ids=st.lists(_TOKENS, min_size=1, max_size=9), wanted=st.booleans())
    def read(self, ids: list[int], wanted: bool) -> None:
        if len(self.trunk) + len(ids) > self.most_tokens:
            return
        found = self.state.read(ids, wanted=wanted)
        self.trunk += ids
        self.held.clear()
        assert self.state.length == len(self.trunk)
        if wanted:
            assert_choices(found, self.after(tuple(self.trunk)), self.atol)
        else:
            assert found is None

    @precondition(lambda self: self.trunk)
    @rule(data=st.data())
    def expand(self, data: st.DataObject) -> None:
        parents = st.sampled_from([(), *sorted(self.held)])
        tails = st.lists(_TOKENS, min_size=1, max_size=3).map(tuple)
        paths = data.draw(
            st.lists(
                st.tuples(parents, tails).map(lambda pair: pair[0] + pair[1]),
                min_size=1,
                max_size=self.engine.max_paths,
            )
        )
        if self._size(paths) > self.most_tokens:
            return
        found = self.state.expand(paths)
        assert len(found) == len(paths)
        for path, choices in zip(paths, found, strict=True):
            assert_choices(choices, self.after((*self.trunk, *path)), self.atol)
        if self.engine.max_paths == 1:
            self.held.clear()
        self.held |= {path[:end] for path in paths for end in range(1, len(path) + 1)}
        assert self.state.length == len(self.trunk)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(sorted(self.held)))
        path += tuple(data.draw(st.lists(_TOKENS, max_size=2)))
        known = max(end for end in range(len(path) + 1) if not end or path[:end] in self.held)
        count = self.state.advance(path)
        assert count == known or (self.engine.max_paths == 1 and known < count <= len(path))
        self.trunk += path[:count]
        self.held = {
            other[count:]
            for other in self.held
            if other[:count] == path[:count] and len(other) > count
        }
        assert self.state.length == len(self.trunk)

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.trunk)))
        self.state.truncate(length)
        del self.trunk[length:]
        self.held.clear()
        assert self.state.length == length

    def _size(self, paths: Sequence[Path]) -> int:
        nodes = self.held | {path[:end] for path in paths for end in range(1, len(path) + 1)}
        return len(self.trunk) + len(nodes)
