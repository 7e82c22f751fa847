"""What decides the choice of a token, and what is reported about one.

Values only, so that the seam to a target (`target.py`) needs neither torch nor transformers.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import GenerationConfig

    from anydraft.v1.prompt_pb2 import SamplingParams


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Everything that decides a choice, resolved: nothing is unset any more."""

    temperature: float = 0.0
    """0 is greedy."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    min_new_tokens: int = 0
    suppressed_ids: tuple[int, ...] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0

    @classmethod
    def resolve(
        cls, asked: SamplingParams, defaults: GenerationConfig, prompt_tokens: int
    ) -> SamplingSettings:
        """What the request says; where it is silent, what the model's generation_config says; where
        that is silent too, what leaves the distribution alone.
        """

        said = {descriptor.name: value for descriptor, value in asked.ListFields()}

        def choose(name: str, neutral: Any) -> Any:
            value = said.get(name, getattr(defaults, name, None))
            return neutral if value is None else value

        default_temperature = (defaults.temperature or 1.0) if defaults.do_sample else 0.0
        min_length = (defaults.min_length or 0) - prompt_tokens
        return cls(
            temperature=said.get("temperature", default_temperature),
            top_k=choose("top_k", 0),
            top_p=choose("top_p", 1.0),
            min_p=choose("min_p", 0.0),
            repetition_penalty=choose("repetition_penalty", 1.0),
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            no_repeat_ngram_size=defaults.no_repeat_ngram_size or 0,
            min_new_tokens=max(defaults.min_new_tokens or 0, min_length, 0),
            suppressed_ids=tuple(defaults.suppress_tokens or ()),
            logit_bias=dict(asked.logit_bias),
            seed=said.get("seed", secrets.randbits(63)),
        )


def unsupported_defaults(config: GenerationConfig) -> list[str]:
    """Settings of a generation_config that `generate` obeys and this node does not."""
    neutral: dict[str, tuple[object, ...]] = {
        "num_beams": (None, 1),
        "guidance_scale": (None, 1, 1.0),
        "typical_p": (None, 1.0),
        "epsilon_cutoff": (None, 0.0),
        "eta_cutoff": (None, 0.0),
        "bad_words_ids": (None, []),
        "sequence_bias": (None, {}),
        "forced_eos_token_id": (None,),
        "forced_bos_token_id": (None,),
        "begin_suppress_tokens": (None, []),
        "exponential_decay_length_penalty": (None,),
        "watermarking_config": (None,),
    }
    return [name for name, values in neutral.items() if getattr(config, name, None) not in values]


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """Log-probabilities of a committed token and of the likeliest alternatives, natural logarithm,
    of the target's own distribution, before penalties and temperature.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]
