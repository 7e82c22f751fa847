"""Trees of draft tokens, cut and moved, against sets of paths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from verify_node.draft_tree import Draft, behind, best_path, in_vocabulary, within_depth
from verify_node.target import DraftToken


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    """As an `Offer` has them: no two children of one parent alike, reaches fall on each path."""
    tokens: list[DraftToken] = []
    for index in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(-1, index - 1))
        token_id = draw(st.integers(-2, 4))
        if any(t.parent == parent and t.token_id == token_id for t in tokens):
            continue
        parent = min(parent, len(tokens) - 1)
        most = tokens[parent].reach if parent >= 0 else 1.0
        if not any(t.parent == parent and t.token_id == token_id for t in tokens):
            tokens.append(DraftToken(token_id, most * draw(st.floats(0, 1)), parent))
    return tuple(tokens)


def paths(tree: Draft) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = []
    for token in tree:
        found.append((*(found[token.parent] if token.parent >= 0 else ()), token.token_id))
    return found


@given(trees())
def test_ids_that_the_model_does_not_have_go_with_all_below_them(tree: Draft) -> None:
    kept = [path for path in paths(tree) if all(0 <= token_id < 4 for token_id in path)]
    assert paths(in_vocabulary(tree, 4)) == kept


@given(trees(), st.lists(st.integers(-2, 4), max_size=4))
def test_what_follows_committed_ids_is_left(tree: Draft, ids: list[int]) -> None:
    committed = tuple(ids)
    left = behind(tree, committed)
    n = len(committed)
    assert paths(left) == [path[n:] for path in paths(tree) if path[:n] == committed and path[n:]]
    assert all(0 <= token.reach <= 1 for token in left)
    assert all(token.parent < at for at, token in enumerate(left))


def test_reaches_count_from_the_new_root() -> None:
    tree = (DraftToken(3, 0.8, -1), DraftToken(4, 0.6, 0), DraftToken(5, 0.2, -1))
    assert behind(tree, [3]) == (DraftToken(4, 0.6 / 0.8, -1),)


@given(trees(), st.integers(0, 5))
def test_depth(tree: Draft, most: int) -> None:
    assert within_depth(tree, most) == [i for i, p in enumerate(paths(tree)) if len(p) <= most]


@given(trees(), st.integers(0, 5))
def test_the_best_path_is_the_one_that_most_is_expected_of(tree: Draft, most: int) -> None:
    reaches = [token.reach for token in tree]
    of_path = dict(zip(paths(tree), reaches, strict=True))

    def expected(path: tuple[int, ...]) -> float:
        return sum(of_path[path[: n + 1]] for n in range(len(path)))

    chosen = best_path(tree, reaches, within_depth(tree, most))
    ids = tuple(tree[index].token_id for index in chosen)
    possible = [path for path in of_path if len(path) <= most]
    assert not ids or ids in possible
    assert expected(ids) >= max(map(expected, possible), default=0.0)
