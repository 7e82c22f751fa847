"""The tree of draft tokens that a session holds: cut to what can be checked, moved by commits.

Trees are those of `Offer`: a token names its parent by index, and comes behind it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from verify_node.target import DraftToken

Draft = tuple[DraftToken, ...]


def in_vocabulary(tokens: Draft, size: int) -> Draft:
    """Without ids that the model does not have, and what hangs below them."""
    if all(0 <= token.token_id < size for token in tokens):
        return tokens
    kept: set[int] = set()
    for index, token in enumerate(tokens):
        if 0 <= token.token_id < size and _has(kept, token.parent):
            kept.add(index)
    return part(tokens, sorted(kept))


def behind(tokens: Draft, committed_ids: Sequence[int]) -> Draft:
    """What is left of a tree when the answer grew by `committed_ids`; reaches are those from
    there."""
    root = -1
    for token_id in committed_ids:
        found = (i for i, t in enumerate(tokens) if t.parent == root and t.token_id == token_id)
        root = next(found, len(tokens))
        if root == len(tokens):
            return ()
    if root == -1:
        return tokens
    kept: set[int] = set()
    for index, token in enumerate(tokens):
        if token.parent == root or token.parent in kept:
            kept.add(index)
    scale = tokens[root].reach
    return tuple(
        DraftToken(
            token.token_id, min(token.reach / scale, 1.0) if scale > 0 else 0.0, token.parent
        )
        for token in part(tokens, sorted(kept))
    )


def part(tokens: Draft, indices: Sequence[int]) -> Draft:
    """The tokens at `indices`, which grow; one whose parent is not among them becomes a root."""
    if indices and len(indices) == indices[-1] + 1:
        return tokens[: len(indices)]
    place = {index: at for at, index in enumerate(indices)}
    return tuple(
        DraftToken(token.token_id, token.reach, place.get(token.parent, -1))
        for token in map(tokens.__getitem__, indices)
    )


def within_depth(tokens: Draft, most: int) -> list[int]:
    """Indices of the tokens whose paths have at most that many tokens."""
    if most >= len(tokens):
        return list(range(len(tokens)))
    depths: list[int] = []
    for token in tokens:
        depths.append(depths[token.parent] + 1 if token.parent >= 0 else 1)
    return [index for index, depth in enumerate(depths) if depth <= most]


def best_path(tokens: Draft, reaches: Sequence[float], among: Iterable[int]) -> list[int]:
    """Indices, from the root on, of the path on which most tokens are expected to hold: the sum of
    `reaches`. Only tokens `among` these count; with each of them, its parent is."""
    expected: dict[int, float] = {-1: 0.0}
    best = -1
    for index in among:
        expected[index] = expected[tokens[index].parent] + reaches[index]
        if expected[index] > expected[best]:
            best = index
    path: list[int] = []
    while best >= 0:
        path.append(best)
        best = tokens[best].parent
    return path[::-1]


def _has(kept: Container[int], parent: int) -> bool:
    return parent < 0 or parent in kept
