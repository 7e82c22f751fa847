"""transformers' own logits processors for a session's settings, in the order of its `generate`.

Each is a function of the prefix and the scores, so that a choice depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from transformers.generation import logits_process as processors

from verify_node.sampling_settings import SamplingSettings

Processor = processors.LogitsProcessor


def penalties(
    settings: SamplingSettings,
    prompt_ids: Sequence[int],
    eos_ids: Sequence[int],
    device: torch.device,
) -> list[Processor]:
    """What moves or bans scores, whether the choice is greedy or drawn.

    Raises TypeError or ValueError for values that transformers refuses.
    """
    return list(_penalties(settings, prompt_ids, list(eos_ids), str(device)))


def warpers(settings: SamplingSettings, device: torch.device) -> list[Processor]:
    """What shapes the distribution that is drawn from; nothing when the choice is greedy.

    Raises TypeError or ValueError for values that transformers refuses.
    """
    return [] if settings.is_greedy else list(_warpers(settings, str(device)))


def _penalties(
    s: SamplingSettings, prompt_ids: Sequence[int], eos_ids: list[int], device: str
) -> Iterator[Processor]:
    rules, prompt_tokens = s.rules, len(prompt_ids)
    if rules.sequence_bias:
        yield processors.SequenceBiasLogitsProcessor(
            [[list(ids), bias] for ids, bias in rules.sequence_bias]
        )
    if rules.encoder_repetition_penalty != 1.0:
        yield processors.EncoderRepetitionPenaltyLogitsProcessor(
            rules.encoder_repetition_penalty, _encoded(prompt_ids, device)
        )
    if s.repetition_penalty != 1.0:
        yield processors.RepetitionPenaltyLogitsProcessor(s.repetition_penalty)
    if rules.no_repeat_ngram_size > 0:
        yield processors.NoRepeatNGramLogitsProcessor(rules.no_repeat_ngram_size)
    if rules.encoder_no_repeat_ngram_size > 0:
        yield processors.EncoderNoRepeatNGramLogitsProcessor(
            rules.encoder_no_repeat_ngram_size, _encoded(prompt_ids, device)
        )
    # As in the processor itself, which refuses a list that is empty afterwards.
    words = [list(ids) for ids in rules.bad_words_ids if not (len(ids) == 1 and ids[0] in eos_ids)]
    if words:
        yield processors.NoBadWordsLogitsProcessor(words, None)
    if s.min_new_tokens > 0 and eos_ids:
        yield processors.MinNewTokensLengthLogitsProcessor(
            prompt_tokens, s.min_new_tokens, eos_ids, device
        )
    if rules.forced_bos_token_id is not None:
        yield processors.ForcedBOSTokenLogitsProcessor(rules.forced_bos_token_id)
    if rules.forced_eos_token_id and s.max_new_tokens is not None:
        yield processors.ForcedEOSTokenLogitsProcessor(
            prompt_tokens + s.max_new_tokens, list(rules.forced_eos_token_id), device
        )
    if rules.remove_invalid_values:
        yield processors.InfNanRemoveLogitsProcessor()
    if rules.exponential_decay_length_penalty and eos_ids:
        yield processors.ExponentialDecayLengthPenalty(
            rules.exponential_decay_length_penalty, eos_ids, prompt_tokens
        )
    if rules.suppress_tokens:
        yield processors.SuppressTokensLogitsProcessor(list(rules.suppress_tokens), device)
    if rules.begin_suppress_tokens:
        waits = prompt_tokens <= 1 and rules.forced_bos_token_id is not None
        yield processors.SuppressTokensAtBeginLogitsProcessor(
            list(rules.begin_suppress_tokens), prompt_tokens + waits, device
        )
    if rules.renormalize_logits and s.is_greedy:
        yield processors.LogitNormalization()


def _warpers(s: SamplingSettings, device: str) -> Iterator[Processor]:
    rules = s.rules
    if s.temperature != 1.0:
        yield processors.TemperatureLogitsWarper(float(s.temperature))
    if rules.top_h is not None:
        yield processors.TopHLogitsWarper(rules.top_h)
    if s.top_k > 0:
        yield processors.TopKLogitsWarper(s.top_k)
    if s.top_p < 1.0:
        yield processors.TopPLogitsWarper(s.top_p)
    if s.min_p > 0.0:
        yield processors.MinPLogitsWarper(s.min_p)
    if rules.typical_p < 1.0:
        yield processors.TypicalLogitsWarper(rules.typical_p)
    if 0.0 < rules.epsilon_cutoff < 1.0:
        yield processors.EpsilonLogitsWarper(rules.epsilon_cutoff)
    if 0.0 < rules.eta_cutoff < 1.0:
        yield processors.EtaLogitsWarper(rules.eta_cutoff, device=device)
    if rules.renormalize_logits:
        yield processors.LogitNormalization()


def _encoded(prompt_ids: Sequence[int], device: str) -> torch.LongTensor:
    return cast(torch.LongTensor, torch.tensor([list(prompt_ids)], device=device))
