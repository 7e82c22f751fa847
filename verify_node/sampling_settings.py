"""What decides the choice of a token, and what is reported about one.

Values only, so that the seam to a target (`target.py`) needs neither torch nor transformers.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from verify_node.generation_defaults import GenerationDefaults, ModelRules

if TYPE_CHECKING:
    from anydraft.v1.prompt_pb2 import SamplingParams

_SMALLEST_TEMPERATURE = 2.0**-126
"""The smallest normal number of float32. Below it a temperature is 0: some devices take such
numbers for 0, and no two scores that differ leave any doubt there."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Everything that decides a choice, resolved: nothing is unset any more."""

    temperature: float = 0.0
    """As asked; see `is_greedy`."""
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    min_new_tokens: int = 0
    max_new_tokens: int | None = None
    """Where the answer will be cut; the model's rules may force an end there."""
    rules: ModelRules = field(default_factory=ModelRules)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken, the lowest id where several are."""
        return self.temperature < _SMALLEST_TEMPERATURE

    @classmethod
    def resolve(
        cls,
        asked: SamplingParams,
        defaults: GenerationDefaults,
        prompt_tokens: int,
        max_new_tokens: int | None = None,
    ) -> SamplingSettings:
        """What the request says; where it is silent, what the model's generation_config says; where
        that is silent too, what leaves the distribution alone.
        """
        said = {descriptor.name: value for descriptor, value in asked.ListFields()}
        return cls(
            temperature=said.get("temperature", defaults.temperature),
            top_k=said.get("top_k", defaults.top_k),
            top_p=said.get("top_p", defaults.top_p),
            min_p=said.get("min_p", defaults.min_p),
            repetition_penalty=said.get("repetition_penalty", defaults.repetition_penalty),
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            logit_bias=dict(asked.logit_bias),
            seed=said.get("seed", secrets.randbits(63)),
            min_new_tokens=defaults.min_new_tokens_after(prompt_tokens),
            max_new_tokens=max_new_tokens,
            rules=defaults.rules,
        )


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """Log-probabilities of a committed token and of the likeliest alternatives, natural logarithm,
    of the target's own distribution, before penalties and temperature.
    """

    logprob: float
    top: tuple[tuple[int, float], ...]
