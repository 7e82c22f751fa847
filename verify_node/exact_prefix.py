"""What a choice needs of the tokens before it, kept from one position to the next.

A walk along a draft asks for the same answer and one token more each time, so only that token is
new. Whether it is so is looked up every time: what does not go on is built anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch

_ROOM = 256


class ExactPrefix:
    """Prompt and answer as one tensor."""

    def __init__(self, prompt_ids: Sequence[int]) -> None:
        self._prompt_ids = prompt_ids
        self._ids: torch.Tensor | None = None
        """With room behind; most sessions never ask."""
        self._answer: list[int] = []

    def at(self, answer_ids: Sequence[int], device: torch.device) -> torch.Tensor:
        """[1, prompt and answer]; a view that holds until the next call. Always the same device."""
        added = _added(self._answer, answer_ids)
        if added is None:
            self._answer.clear()
            added = answer_ids
        begin = len(self._prompt_ids) + len(self._answer)
        end = begin + len(added)
        if self._ids is None:
            self._ids = _tensor(self._prompt_ids, device)
        if end > len(self._ids):
            self._ids = torch.cat([self._ids[:begin], self._ids.new_empty(end + _ROOM)])
        self._ids[begin:end] = _tensor(added, device)
        self._answer.extend(added)
        return self._ids[:end].unsqueeze(0)


class ScoreOffsets:
    """What logit biases, presence and frequency penalties add to the scores.

    The penalties count the answer only, as in the OpenAI API.
    """

    def __init__(
        self, logit_bias: Mapping[int, float], presence_penalty: float, frequency_penalty: float
    ) -> None:
        self._logit_bias = logit_bias
        self._bias_ids = torch.tensor(list(logit_bias), dtype=torch.long)
        self._biases = torch.tensor(list(logit_bias.values()), dtype=torch.float32)
        self._presence_penalty = presence_penalty
        self._frequency_penalty = frequency_penalty
        self._offsets: torch.Tensor | None = None
        self._answer: list[int] = []
        self._counts: Counter[int] = Counter()

    @property
    def is_neutral(self) -> bool:
        """Whether nothing is ever added."""
        return not (self._logit_bias or self._counts_answer)

    @property
    def _counts_answer(self) -> bool:
        return self._presence_penalty != 0 or self._frequency_penalty != 0

    def at(self, answer_ids: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """[vocabulary], as `logits`; holds until the next call."""
        added = _added(self._answer, answer_ids) if self._counts_answer else ()
        if added is None or self._offsets is None:
            self._answer.clear()
            self._counts.clear()
            self._offsets = self._without_answer(logits)
            added = answer_ids if self._counts_answer else ()
        if added:
            self._answer.extend(added)
            self._counts.update(added)
            changed = list(set(added))
            values = [self._offset(token_id) for token_id in changed]
            ids = torch.tensor(changed, device=logits.device)
            self._offsets[ids] = torch.tensor(values, device=logits.device)
        return self._offsets

    def _without_answer(self, logits: torch.Tensor) -> torch.Tensor:
        offsets = torch.zeros_like(logits)
        offsets[self._bias_ids.to(logits.device)] = self._biases.to(logits.device)
        return offsets

    def _offset(self, token_id: int) -> float:
        # From the count alone, so that it does not matter by which steps the answer came to it.
        penalty = self._presence_penalty + self._frequency_penalty * self._counts[token_id]
        return self._logit_bias.get(token_id, 0.0) - penalty


def _tensor(ids: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(list(ids), dtype=torch.long, device=device)


def _added(held: list[int], ids: Sequence[int]) -> Sequence[int] | None:
    """What `ids` has behind `held`; None when it does not begin with it."""
    return ids[len(held) :] if list(ids[: len(held)]) == held else None
