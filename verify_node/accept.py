"""The acceptance rule.

With the logits after the last committed token and after each draft token, walk down the tree of the
draft: choose the target's token for each position from its exact prefix, commit it, and go on as
long as the draft has a child that says the same. What the draft says never changes what is chosen,
only how many tokens one forward yields (exact match as in Timor et al., arXiv 2502.05202, algorithm
2; along a tree as in Miao et al., arXiv 2305.09781).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from verify_node.token_chooser import TokenChooser, logits_not_finite


@dataclass(frozen=True, slots=True)
class Accepted:
    token_ids: list[int]
    """The accepted draft tokens, and one of the target's own."""
    path: list[int]
    """Which draft tokens were accepted: their indices."""

    @property
    def positions(self) -> list[int]:
        """Of the logits that each of `token_ids` was chosen by."""
        return [0, *(index + 1 for index in self.path)]


def accept(
    logits: torch.Tensor,
    draft_ids: Sequence[int],
    parents: Sequence[int],
    chooser: TokenChooser,
    answer_ids: Sequence[int],
) -> Accepted:
    """logits [len(draft_ids) + 1, vocabulary], float32: after the committed tokens, and after each
    draft token; `parents`: for each draft token, the index of the one that it follows, smaller than
    its own, -1 for the committed tokens. No two children of one parent are the same.

    Raises InternalError when the logits of a position that is reached are not finite: NaN or
    infinity among them, or nothing but minus infinity (some of it is legitimate: ids that a model
    masks). Nothing of the block counts then; with a draft, that may be the draft's doing. A chooser
    that repairs logits hides it only where nothing is drafted. Raises InvalidRequestError as
    `choose` does.
    """
    best_at = _best_at(logits)
    repairs = chooser.repairs_logits and not draft_ids
    index_of = {edge: i for i, edge in enumerate(zip(parents, draft_ids, strict=True))}
    answer, path = list(answer_ids), []
    reached: int | None = -1
    while reached is not None:
        position = reached + 1
        best_id, largest = best_at(position)
        if not (repairs or math.isfinite(largest)):
            raise logits_not_finite(len(answer))
        if chooser.is_plain_greedy:
            answer.append(best_id)
        else:
            answer.append(chooser.choose(logits[position], answer))
        reached = index_of.get((reached, answer[-1]))
        if reached is not None:
            path.append(reached)
    return Accepted(answer[len(answer_ids) :], path)


def _best_at(logits: torch.Tensor) -> Callable[[int], tuple[int, float]]:
    """The id with the largest logit, the lowest of several, and that logit, for a position. A NaN
    counts as larger than anything."""
    # (Another kind of tensor may know better.)
    if type(logits) is torch.Tensor and logits.device.type == "cpu":
        # Only where the walk comes by: most branches are never looked at. numpy's search takes a
        # tenth of the time of torch's.
        rows = logits.numpy()

        def on_cpu(position: int) -> tuple[int, float]:
            best_id = int(rows[position].argmax())
            return best_id, float(rows[position, best_id])

        return on_cpu
    # All at once: each reading back waits for the device.
    largest, ids = (values.tolist() for values in logits.max(dim=-1))
    return lambda position: (ids[position], largest[position])
