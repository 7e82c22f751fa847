"""How long a step of a simulated target takes."""

from __future__ import annotations

from dataclasses import dataclass

SLOPE_TOKENS = 16
"""The slope says what this many more tokens add to a step."""
_SLOPED_PROMPT_TOKENS = 64
"""So many tokens of a prompt cost what as many others do. A GPU reads longer ones far more cheaply
than the slope of small steps says."""
_PROMPT_TOKENS_A_STEP = 512
"""Each further token of a prompt adds this part of the step: 512 of them double it."""


@dataclass(frozen=True, slots=True)
class StepTime:
    step_ms: float
    """Of a step over one token."""
    slope: float
    """16 more tokens take this much more: 0.05 is the flat step of a GPU, 1 doubles it."""

    def ms(self, tokens: int, prompt_tokens: int = 0) -> float:
        """Of a step over `tokens` with logits and `prompt_tokens` that are only read."""
        sloped = tokens + min(prompt_tokens, _SLOPED_PROMPT_TOKENS)
        base = self.step_ms * (1 + self.slope * max(sloped - 1, 0) / SLOPE_TOKENS)
        more = max(prompt_tokens - _SLOPED_PROMPT_TOKENS, 0)
        return base * (1 + more / _PROMPT_TOKENS_A_STEP)
