"""How the target's next token is chosen: greedy, or by a draw keyed by (seed, index of the token).

The choice is a function of the logits, the exact prefix, the seed and the index. It does not depend
on drafts, on batching or on how often it is asked, so whoever continues a session draws the same.
Processors are transformers' own, in the order of its `generate`.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections import Counter
from collections.abc import Sequence

import torch
from transformers.generation import logits_process as processors

from verify_node.sampling_settings import SamplingSettings, ScoredToken

Processor = processors.LogitsProcessor


def keyed_uniform(seed: int, index: int) -> float:
    """A number in [0, 1) for the token at `index` of the answer, the same on every machine."""
    digest = hashlib.blake2b(struct.pack("<QQ", seed & (2**64 - 1), index), digest_size=8).digest()
    return float(int.from_bytes(digest, "little") >> 11) / float(1 << 53)


class TokenChooser:
    """Chooses the tokens of one session."""

    def __init__(
        self, settings: SamplingSettings, prompt_ids: Sequence[int], eos_ids: Sequence[int]
    ) -> None:
        self._settings = settings
        self._prompt_ids = list(prompt_ids)
        self._penalties = _penalties(settings, len(prompt_ids), eos_ids)
        self._warpers = _warpers(settings)
        self._counts = settings.presence_penalty != 0 or settings.frequency_penalty != 0

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the choice is the largest logit, whatever came before."""
        s = self._settings
        return s.temperature == 0 and not (self._penalties or s.logit_bias or self._counts)

    def choose(self, logits: torch.Tensor, answer_ids: Sequence[int]) -> int:
        """The id that follows prompt + `answer_ids`; logits [vocabulary], float32."""
        if self.is_plain_greedy:
            return int(logits.argmax())
        scores = self._scores(logits, answer_ids)
        if self._settings.temperature == 0:
            return int(scores.argmax())
        return self._draw(scores, len(answer_ids))

    def _scores(self, logits: torch.Tensor, answer_ids: Sequence[int]) -> torch.Tensor:
        scores = logits.clone()
        for token_id, bias in self._settings.logit_bias.items():
            scores[token_id] += bias
        if self._counts and answer_ids:
            counts = Counter(answer_ids)
            ids = torch.tensor(list(counts), device=scores.device)
            times = torch.tensor(list(counts.values()), device=scores.device, dtype=scores.dtype)
            scores[ids] -= (
                self._settings.presence_penalty + self._settings.frequency_penalty * times
            )
        if not (self._penalties or self._warpers):
            return scores
        prefix = torch.tensor([[*self._prompt_ids, *answer_ids]], device=scores.device)
        batch = scores.unsqueeze(0)
        for process in (*self._penalties, *self._warpers):
            batch = process(prefix, batch)
        return batch[0]

    def _draw(self, scores: torch.Tensor, index: int) -> int:
        """Inverse transform sampling: the first id whose cumulative probability exceeds u."""
        cumulative = torch.softmax(scores.double(), dim=-1).cumsum(dim=-1)
        u = keyed_uniform(self._settings.seed, index) * cumulative[-1]
        drawn = torch.searchsorted(cumulative, u.reshape(1), right=True)
        return int(drawn.clamp_max(len(cumulative) - 1))


def _penalties(s: SamplingSettings, prompt_tokens: int, eos_ids: Sequence[int]) -> list[Processor]:
    chosen: list[Processor] = []
    if s.repetition_penalty != 1.0:
        chosen.append(processors.RepetitionPenaltyLogitsProcessor(s.repetition_penalty))
    if s.no_repeat_ngram_size > 0:
        chosen.append(processors.NoRepeatNGramLogitsProcessor(s.no_repeat_ngram_size))
    if s.min_new_tokens > 0 and eos_ids:
        chosen.append(
            processors.MinNewTokensLengthLogitsProcessor(
                prompt_tokens, s.min_new_tokens, list(eos_ids)
            )
        )
    if s.suppressed_ids:
        chosen.append(processors.SuppressTokensLogitsProcessor(list(s.suppressed_ids)))
    return chosen


def _warpers(s: SamplingSettings) -> list[Processor]:
    if s.temperature == 0:
        return []
    chosen: list[Processor] = []
    if s.temperature != 1.0:
        chosen.append(processors.TemperatureLogitsWarper(float(s.temperature)))
    if s.top_k > 0:
        chosen.append(processors.TopKLogitsWarper(s.top_k))
    if s.top_p < 1.0:
        chosen.append(processors.TopPLogitsWarper(s.top_p))
    if s.min_p > 0.0:
        chosen.append(processors.MinPLogitsWarper(s.min_p))
    return chosen


def score_token(logits: torch.Tensor, token_id: int, num_top: int) -> ScoredToken:
    """logits [vocabulary]"""
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    top: tuple[tuple[int, float], ...] = ()
    if num_top:
        values, ids = logprobs.topk(min(num_top, len(logprobs)))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    value = float(logprobs[token_id])
    return ScoredToken(value if math.isfinite(value) else -math.inf, top)
