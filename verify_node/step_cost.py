"""What a step costs: t_v(n), the time of one forward over n tokens, kept up to date."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

_WEIGHT = 0.1
"""Of a new measurement in the running scale."""
_PROMPT_WEIGHT = 0.3
"""Of a new measurement of what a token of a prompt costs; it changes while the prompt is read."""
_MOST_GROWTH = 4.0
"""A single slow step says little: other processes only ever add to it."""
_PROBE_TOKENS = 32
_LEAST_MS = 1e-4


class StepCost:
    """Piecewise linear through calibration points, scaled by how steps have gone since."""

    def __init__(self, points: Sequence[tuple[int, float]]) -> None:
        """`points`: (tokens, milliseconds), by growing tokens, at least two."""
        if len(points) < 2:
            raise ValueError("a step cost needs two calibration points or more")
        self._tokens = [tokens for tokens, _ in points]
        # More tokens never cost less, and noise only adds: a step costs at most what any larger one
        # took.
        self._ms = [min(ms for _, ms in points[i:]) for i in range(len(points))]
        self._scale = 1.0
        self._found: dict[int, float] = {}
        """Asked for hundreds of times in each step."""

    def ms(self, tokens: int) -> float:
        """Expected duration of a step over `tokens` tokens."""
        return self._scale * self._base_ms(tokens)

    def calibrated_ms(self, tokens: int) -> float:
        """What the same step took at start-up, with the machine to itself."""
        return self._base_ms(tokens)

    def observe(self, tokens: int, ms: float) -> None:
        """A step over `tokens` tokens took `ms`."""
        ratio = ms / max(self._base_ms(tokens), 1e-6)
        self._scale += _WEIGHT * (min(max(ratio, 0.2), 5.0) - self._scale)

    def _base_ms(self, tokens: int) -> float:
        found = self._found.get(tokens)
        if found is None:
            found = self._found[tokens] = self._interpolated_ms(tokens)
        return found

    def _interpolated_ms(self, tokens: int) -> float:
        right = bisect.bisect_left(self._tokens, tokens)
        right = min(max(right, 1), len(self._tokens) - 1)
        x0, x1 = self._tokens[right - 1], self._tokens[right]
        y0, y1 = self._ms[right - 1], self._ms[right]
        return max(y0 + (y1 - y0) * (tokens - x0) / (x1 - x0), 1e-3)


class PromptCost:
    """What reading one more token of a prompt adds to a step; grows with the text before it."""

    def __init__(self, cost: StepCost) -> None:
        self._ms = max((cost.ms(_PROBE_TOKENS) - cost.ms(1)) / (_PROBE_TOKENS - 1), _LEAST_MS)

    @property
    def ms(self) -> float:
        """Milliseconds a token."""
        return self._ms

    def observe(self, tokens: int, added_ms: float) -> None:
        """`tokens` of prompts added `added_ms` to a step."""
        ms = max(added_ms / tokens, _LEAST_MS)
        self._ms += _PROMPT_WEIGHT * (min(ms, _MOST_GROWTH * self._ms) - self._ms)
