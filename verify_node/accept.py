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

from verify_node.token_chooser import TokenChooser


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
    """logits [len(draft_ids) + 1, vocabulary]"""
    if chooser.is_plain_greedy:
        best = logits.argmax(dim=-1).tolist()
        n = 0
        while n < len(draft_ids) and best[n] == draft_ids[n]:
            n += 1
        return Accepted(best[: n + 1], n)
    answer = list(answer_ids)
    for position, expected in enumerate([*draft_ids, None]):
        answer.append(chooser.choose(logits[position], answer))
        if answer[-1] != expected:
            break
    token_ids = answer[len(answer_ids) :]
    return Accepted(token_ids, len(token_ids) - 1)
