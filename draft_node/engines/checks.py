"""What every engine checks in the same way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anydraft.errors import ContextFullError, InternalError, UnsupportedModelError
from draft_node.engines.base import AssistantEngine

_TOLERANCE = 0.05
"""Of the spread of the logits. Integer kernels round one row otherwise than several; a cache that
was not rolled back is off by far more."""


def check_feed(ids: Sequence[int], length: int, engine: AssistantEngine) -> None:
    """Raises what `AssistantState.feed` promises for ids that cannot be fed."""
    if not ids:
        raise InternalError(
            "The assistant was fed no ids. Report this as a bug.", reason="ASSISTANT_MISUSED"
        )
    if length + len(ids) > engine.context_tokens:
        raise ContextFullError(
            f"The assistant's context of {engine.context_tokens} tokens is full. "
            "Choose an assistant with a longer one.",
            reason="ASSISTANT_CONTEXT_FULL",
        )
    if not 0 <= min(ids) <= max(ids) < engine.vocab_size:
        raise InternalError(
            f"An id lies outside the assistant's {engine.vocab_size} rows. "
            "Put the model's own tokenizer.json beside its weights.",
            reason="ASSISTANT_MISUSED",
        )


def check_truncate(length: int, held: int) -> None:
    """Raises what `AssistantState.truncate` promises for a length that is not held."""
    if not 0 <= length <= held:
        raise InternalError(
            f"The assistant's cache of {held} tokens was cut to {length}. Report this as a bug.",
            reason="ASSISTANT_MISUSED",
        )


def closed_state() -> InternalError:
    """What a state raises that is used after `close`."""
    return InternalError(
        "The assistant was used after its session ended. Report this as a bug.",
        reason="ASSISTANT_MISUSED",
    )


def prove_rollback(engine: AssistantEngine) -> None:
    """Runs a few tokens and raises UnsupportedModelError unless cutting the cache works.

    State that is not a KV cache may hide behind any name. What is fed after a cut must see what it
    would see on a fresh sequence.
    """
    ids = [(31 * k + 7) % engine.vocab_size for k in range(12)]
    straight = engine.open()
    expected = straight.feed(ids[:8])
    straight.close()
    rolled = engine.open()
    rolled.feed(ids[:5])
    rolled.feed(ids[8:12])
    rolled.truncate(7)
    rolled.truncate(5)
    found = rolled.feed(ids[5:8])
    rolled.close()
    spread = float(np.ptp(expected)) or 1.0
    error = float(np.max(np.abs(found - expected))) / spread
    # Written so that NaN counts as wrong.
    if not error <= _TOLERANCE:
        raise UnsupportedModelError(
            f"This model's cache cannot be rolled back (logits are off by {error:.0%}), which "
            "drafting needs. Choose an assistant with plain attention layers.",
            reason="ASSISTANT_CANNOT_ROLL_BACK",
        )
