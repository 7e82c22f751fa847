"""Logits with one peak a row, which know where it is.

A target's logits lie on its GPU, which finds the largest of 150,000 in no time; here a core would
read them all, 40 microseconds a row. What only needs the peak is told where it is; everything else
sees an ordinary tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

PEAK = 1e4
"""Of the said id, all others being 0: no temperature up to 100 draws another."""

_LARGEST = (torch.Tensor.max, torch.Tensor.amax, torch.Tensor.argmax)


class PeakedLogits(torch.Tensor):
    """[rows, vocabulary], float32; the row's largest value, PEAK, at the place `peaks` says."""

    peaks: tuple[int, ...]

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else None
        if isinstance(first, PeakedLogits) and func in _LARGEST:
            asked = len(args) == 1 and kwargs == {"dim": -1}
            if asked and first.dim() == 2:
                return first._largest(func)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    def _largest(self, func: Callable[..., Any]) -> Any:
        values, places = torch.full((len(self.peaks),), PEAK), torch.tensor(self.peaks)
        if func is torch.Tensor.max:
            return torch.return_types.max((values, places))
        return values if func is torch.Tensor.amax else places


class LogitsPool:
    """Makes logits for one step after another, in the same memory."""

    def __init__(self, vocabulary_size: int) -> None:
        self._buffer = torch.zeros(1, vocabulary_size)
        self._said: tuple[int, ...] = ()

    def take(self, said: Sequence[int]) -> torch.Tensor:
        """A row for each of the ids. What was taken before is no longer valid."""
        rows = torch.arange(len(self._said))
        self._buffer[rows, torch.tensor(self._said, dtype=torch.long)] = 0.0
        if len(said) > len(self._buffer):
            self._buffer = torch.zeros(2 * len(said), self._buffer.shape[1])
        self._said = tuple(said)
        self._buffer[torch.arange(len(said)), torch.tensor(self._said, dtype=torch.long)] = PEAK
        return self._buffer

    def rows(self, start: int, end: int) -> PeakedLogits:
        """Some rows of what was taken last."""
        logits = self._buffer[start:end].as_subclass(PeakedLogits)
        logits.peaks = self._said[start:end]
        return logits
