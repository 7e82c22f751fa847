"""How the target's next token is chosen: greedy, or by a draw keyed by (seed, index of the token).

The choice is a function of the logits, the exact prefix, the seed and the index. It does not depend
on drafts, on batching or on how often it is asked, so whoever continues a session draws the same.
Processors are transformers' own (`logits_processors.py`).
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence

import torch

from anydraft.errors import InternalError, InvalidRequestError
from verify_node.exact_prefix import ExactPrefix, ScoreOffsets
from verify_node.logits_processors import penalties, warpers
from verify_node.quick_draw import surely_drawn
from verify_node.sampling_settings import SamplingSettings, ScoredToken

_LARGEST_SCORE = torch.finfo(torch.float32).max


def keyed_uniform(seed: int, index: int) -> float:
    """A number in [0, 1) for the token at `index` of the answer, the same on every machine."""
    digest = hashlib.blake2b(struct.pack("<QQ", seed & (2**64 - 1), index), digest_size=8).digest()
    return float(int.from_bytes(digest, "little") >> 11) / float(1 << 53)


def logits_not_finite(num_answer: int) -> InternalError:
    """The error that ends a session when the logits after `num_answer` tokens decide nothing."""
    return InternalError(
        f"the target's logits after {num_answer} tokens of the answer are not finite: a value "
        "overflowed inside the model. Serve it with a wider --dtype (bf16 instead of fp16, or "
        "fp32); if that does not help, its weights are damaged.",
        reason="LOGITS_NOT_FINITE",
    )


class TokenChooser:
    """Chooses the tokens of one session. Not thread-safe: it keeps what it knows of the prefix."""

    def __init__(
        self, settings: SamplingSettings, prompt_ids: Sequence[int], eos_ids: Sequence[int]
    ) -> None:
        """Raises TypeError or ValueError for values that transformers' processors refuse."""
        self._settings = settings
        self._prompt_ids = list(prompt_ids)
        self._eos_ids = list(eos_ids)
        self._prefix = ExactPrefix(prompt_ids)
        self._offsets = ScoreOffsets(
            settings.logit_bias, settings.presence_penalty, settings.frequency_penalty
        )
        self._device = torch.device("cpu")
        self._prepare_processors()

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the choice is the largest logit, whatever came before."""
        return self._settings.is_greedy and self._offsets.is_neutral and not self._penalties

    @property
    def repairs_logits(self) -> bool:
        """Whether the model asks that logits which are not finite are replaced."""
        return self._settings.rules.remove_invalid_values

    def choose(self, logits: torch.Tensor, answer_ids: Sequence[int]) -> int:
        """The id that follows prompt + `answer_ids`; logits [vocabulary], float32, one size and one
        device in all calls.

        Raises InvalidRequestError when the settings leave no finite score to choose by.
        """
        scores = self._scores(logits, answer_ids)
        peak = float(scores.amax())
        if not math.isfinite(peak):
            raise self._scores_not_finite(len(answer_ids))
        # Scores that overflow when divided by so small a temperature differ by far too much for a
        # draw to find any but the best.
        s = self._settings
        if s.is_greedy or abs(peak) / s.temperature > _LARGEST_SCORE:
            return int(scores.argmax())
        return self._draw(self._warped(scores), len(answer_ids))

    def _scores(self, logits: torch.Tensor, answer_ids: Sequence[int]) -> torch.Tensor:
        if logits.device != self._device:
            self._device = logits.device
            self._prepare_processors()
        scores = logits
        if not self._offsets.is_neutral:
            scores = scores + self._offsets.at(answer_ids, logits)
        if not self._penalties:
            return scores
        prefix = self._prefix.at(answer_ids, self._device)
        batch = scores.unsqueeze(0)
        try:
            for process in self._penalties:
                batch = process(prefix, batch)
        except OverflowError as error:  # a length penalty grows with every token
            raise self._scores_not_finite(len(answer_ids)) from error
        return batch[0]

    def _warped(self, scores: torch.Tensor) -> torch.Tensor:
        batch = scores.unsqueeze(0)
        no_prefix = batch.new_empty((1, 0), dtype=torch.long)
        for warp in self._warpers:
            batch = warp(no_prefix, batch)
        return batch[0]

    def _prepare_processors(self) -> None:
        s = self._settings
        self._penalties = penalties(s, self._prompt_ids, self._eos_ids, self._device)
        self._warpers = warpers(s, self._device)

    def _draw(self, scores: torch.Tensor, index: int) -> int:
        """Inverse transform sampling: the first id whose cumulative probability exceeds u."""
        uniform = keyed_uniform(self._settings.seed, index)
        if scores.device.type == "cpu":
            drawn = surely_drawn(scores.numpy(), uniform)
            if drawn is not None:
                return drawn
        cumulative = torch.softmax(scores.double(), dim=-1).cumsum(dim=-1)
        total = float(cumulative[-1])
        if not total > 0:
            raise self._scores_not_finite(index)
        # At most 1 - 2^-53 times the total, so below it after rounding: there is such an id.
        u = uniform * total
        return int(torch.searchsorted(cumulative, cumulative.new_tensor([u]), right=True))

    def _scores_not_finite(self, num_answer: int) -> InvalidRequestError:
        return InvalidRequestError(
            f"after {num_answer} tokens of the answer the sampling settings leave no finite score: "
            "they rule out every token, or make scores overflow. Bring repetition_penalty nearer "
            "to 1, or logit_bias nearer to 0.",
            reason="SCORES_NOT_FINITE",
        )


def score_token(logits: torch.Tensor, token_id: int, num_top: int) -> ScoredToken:
    """logits [vocabulary]; what is impossible, or has no probability at all, is minus infinity."""
    logprobs = torch.log_softmax(logits.double(), dim=-1).nan_to_num(-math.inf, neginf=-math.inf)
    top: tuple[tuple[int, float], ...] = ()
    if num_top:
        values, ids = logprobs.topk(min(num_top, len(logprobs)))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return ScoredToken(float(logprobs[token_id]), top)
