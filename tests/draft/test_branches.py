from __future__ import annotations

from anydraft.text.tree import Node, Piece, TextTree
from draft_node.drafters.branches import Branch, Root, follow


def grown(*paths: tuple[list[str], list[float]]) -> tuple[Root, dict[str, Branch]]:
    """Branches by their whole text written with bars; ids are the numbers of branches, from 1."""
    tree, root = TextTree(max_pieces=50, max_bytes=1000), Root(0)
    root.is_expanded = True
    made: dict[str, Branch] = {}
    for texts, probabilities in paths:
        above: Root | Branch = root
        below: Node | None = None
        for at, (text, logprob) in enumerate(zip(texts, probabilities, strict=True), 1):
            name = "|".join(texts[:at])
            below = tree.hang(Piece(text.encode(), logprob), below)
            assert below is not None
            above.is_expanded = True
            if name not in made:
                made[name] = above.grow(below, len(made) + 1)
            above = made[name]
    return root, made


def test_a_path_that_ends_with_the_text_is_the_root() -> None:
    """Rather than a likelier one that goes on: the target's token ends there, too."""
    root, made = grown(([" the", " cat"], [-2.0, -1.0]), ([" they", " are"], [-0.1, -0.1]))
    moved = follow(root, b" the")
    assert moved is not None
    assert moved.ids == [made[" the"].token_id]
    assert moved.children == [made[" the| cat"]]
    assert moved.is_expanded


def test_inside_a_token_those_that_part_there_go_on() -> None:
    root, made = grown(
        (["so", " many", "!"], [-1.0, -1.0, -1.0]),
        (["so", " more"], [-1.0, -0.5]),
        (["so", " few"], [-1.0, -0.2]),
        (["s", "o m"], [-3.0, -1.0]),
    )
    moved = follow(root, b"so m")
    assert moved is not None
    # The path that ends with the text is unlikely, and yet it is the one that does.
    assert moved.ids == [made["s"].token_id, made["s|o m"].token_id]
    assert not moved.is_expanded
    moved = follow(root, b"so mo")
    assert moved is not None
    assert (moved.ids, moved.children) == ([made["so"].token_id], [made["so| more"]])
    assert made["so| more"].path() == [made["so| more"].token_id]


def test_the_likeliest_of_several_that_go_on() -> None:
    root, made = grown((["ab", "cde"], [-1.0, -1.0]), (["a", "bcdef"], [-0.1, -0.1]))
    moved = follow(root, b"abc")
    assert moved is not None
    assert (moved.ids, moved.children) == ([made["a"].token_id], [made["a|bcdef"]])


def test_text_that_nobody_drafted_has_no_root() -> None:
    root, _ = grown((["ab"], [-1.0]))
    assert follow(root, b"ac") is None
    assert follow(root, b"abc") is None
