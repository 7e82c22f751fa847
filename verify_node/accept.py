"""The acceptance rule.

With the logits after the last committed token and after each draft token, walk along the draft:
choose the target's token for each position from its exact prefix, commit it, and go on as long as
the draft had said the same. What the draft says never changes what is chosen, only how many tokens
one forward yields (exact match as in Timor et al., arXiv 2502.05202, algorithm 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from verify_node.token_chooser import TokenChooser, logits_not_finite


@dataclass(frozen=True, slots=True)
class Accepted:
    token_ids: list[int]
    """The accepted draft tokens, and one of the target's own."""
    num_accepted: int


def accept(
    logits: torch.Tensor,
    draft_ids: Sequence[int],
    chooser: TokenChooser,
    answer_ids: Sequence[int],
) -> Accepted:
    """logits [len(draft_ids) + 1, vocabulary], float32

    Raises InternalError when the logits of a position that is reached are not finite: NaN or
    infinity among them, or nothing but minus infinity (some of it is legitimate: ids that a model
    masks). Nothing of the block counts then; with a draft, that may be the draft's doing. A chooser
    that repairs logits hides it only where nothing is drafted. Raises InvalidRequestError as
    `choose` does.
    """
    # A NaN is larger than anything to these, so the largest logit of a position tells.
    best_ids: list[int] | None = None
    if chooser.is_plain_greedy:
        largest, best = logits.max(dim=-1)
        best_ids = best.tolist()
    else:
        largest = logits.amax(dim=-1)
    repairs = chooser.repairs_logits and not draft_ids
    is_sound = [True] * len(logits) if repairs else largest.isfinite().tolist()
    answer = list(answer_ids)
    for position, expected in enumerate([*draft_ids, None]):
        if not is_sound[position]:
            raise logits_not_finite(len(answer))
        if best_ids is None:
            answer.append(chooser.choose(logits[position], answer))
        else:
            answer.append(best_ids[position])
        if answer[-1] != expected:
            break
    token_ids = answer[len(answer_ids) :]
    return Accepted(token_ids, len(token_ids) - 1)
