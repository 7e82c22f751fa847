"""What every engine checks in the same way."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np

from anydraft.errors import ContextFullError, InternalError, UnsupportedModelError
from draft_node.engines.base import AssistantEngine, Path
from draft_node.engines.cache import Array, Cache, Pass, TreeCache, TreePlaces

logger = logging.getLogger(__name__)

_TOLERANCE = 0.05
"""Of the spread of the logits. Integer kernels round one row otherwise than several; a cache that
was not rolled back is off by far more."""
_TREE_TOLERANCE = 0.1
"""As above, for all the branches of the proof. Measured with int4: rounding 0.02 (SmolLM2-135M) and
0.04 (Gemma-3-270m), branches that see each other 0.44 and 0.73."""


def check_feed(ids: Sequence[int], length: int, engine: AssistantEngine) -> None:
    """Raises what `AssistantState.read` promises for ids that cannot be read."""
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


def check_paths(paths: Sequence[Path], trunk: int, engine: AssistantEngine) -> None:
    """Raises what `AssistantState.expand` promises for paths that it does not take."""
    if not 1 <= len(paths) <= engine.max_paths or not trunk or not all(paths):
        raise InternalError(
            f"The assistant, which takes {engine.max_paths} paths behind a text, was given "
            f"{len(paths)} behind {trunk} tokens, the shortest of {min(map(len, paths), default=0)}"
            ". Report this as a bug.",
            reason="ASSISTANT_MISUSED",
        )


def prove_rollback(open_cache: Callable[[], Cache], vocab_size: int) -> None:
    """Runs a few tokens and raises UnsupportedModelError unless cutting the cache works.

    State that is not a KV cache may hide behind any name. What is read after a cut must see what it
    would see on a fresh sequence.
    """
    ids = [(31 * k + 7) % vocab_size for k in range(12)]
    with closing(open_cache()) as straight:
        expected = straight.run(Pass(ids[:8], [7]))
    with closing(open_cache()) as rolled:
        rolled.run(Pass(ids[:5], []))
        rolled.run(Pass(ids[8:12], [3]))
        for length in (7, 5):
            rolled.length = length
        found = rolled.run(Pass(ids[5:8], [2]))
    error = _distance(found, expected)
    # Written so that NaN counts as wrong.
    if not error <= _TOLERANCE:
        raise UnsupportedModelError(
            f"This model's cache cannot be rolled back (logits are off by {error:.0%}), which "
            "drafting needs. Choose an assistant with plain attention layers.",
            reason="ASSISTANT_CANNOT_ROLL_BACK",
        )


def trees_hold(
    open_chain: Callable[[], Cache],
    open_tree: Callable[[], TreeCache],
    vocab_size: int,
) -> bool:
    """Whether branches that are computed side by side are what they are one by one.

    Two branches fork and grow behind a trunk; then the second becomes the trunk, so that what is
    kept changes its place, and grows once more. Sliding layers are proven where that is more than
    they see.
    """
    ids = [(29 * k + 11) % vocab_size for k in range(22)]
    trunk, (a, b, c, d, e, f) = ids[:16], ids[16:]
    end = len(trunk)
    forks = TreePlaces(end, [end, end], [[end], [end + 1]])
    grown = TreePlaces(
        end,
        [end, end, end + 1, end + 1, end + 1],
        [[end, end + 2], [end + 1, end + 3], [end + 1, end + 4]],
    )
    last = TreePlaces(end + 1, [end + 1, end + 1, end + 2], [[end + 2, end + 3]])
    try:
        with closing(open_tree()) as tree:
            tree.run(Pass(trunk, []))
            found = [*tree.run(Pass([a, b], [0, 1], forks)).copy()]
            found += [*tree.run(Pass([c, d, e], [0, 1, 2], grown)).copy()]
            tree.move([end + 1, end + 3, end + 4], end)
            found += [*tree.run(Pass([f], [0], last)).copy()]
    except Exception as error:  # whatever an engine raises for what it cannot compute
        logger.info("this assistant drafts chains: a tree failed with %s", error)
        return False
    paths = ([a], [b], [a, c], [b, d], [b, e], [b, e, f])
    for path, logits in zip(paths, found, strict=True):
        with closing(open_chain()) as chain:
            expected = chain.run(Pass([*trunk, *path], [end + len(path) - 1]))[0]
        # Written so that NaN counts as wrong.
        if not _distance(logits, expected) <= _TREE_TOLERANCE:
            logger.info("this assistant drafts chains: branches of a tree see each other")
            return False
    return True


def _distance(found: Array, expected: Array) -> float:
    """Largest difference of logits, as a part of their spread; NaN where one is none."""
    spread = float(np.ptp(expected)) or 1.0
    return float(np.max(np.abs(found - expected))) / spread
