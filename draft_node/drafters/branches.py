"""Where the nodes of an assistant hang in its own tokens, and how committed text moves the root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from anydraft.text.tree import Node


@dataclass(eq=False, slots=True)
class Branch:
    """One drafted token."""

    node: Node
    """Its text, in the session's tree."""
    token_id: int
    parent: Branch | None
    """None where it hangs at the root."""
    children: list[Branch] = field(default_factory=list)
    is_expanded: bool = False
    """Whether the assistant was asked what may follow; not all of that need be held."""

    def grow(self, node: Node, token_id: int) -> Branch:
        """A new branch below this one."""
        self.children.append(Branch(node, token_id, self))
        return self.children[-1]

    def path(self) -> list[int]:
        """Ids from the root to this one, the last."""
        ids = [self.token_id]
        branch = self
        while branch.parent is not None:
            branch = branch.parent
            ids.append(branch.token_id)
        ids.reverse()
        return ids


@dataclass(eq=False, slots=True)
class Root:
    """Committed text as far as whole tokens of the assistant go."""

    committed_bytes: int
    """How much text was committed when it became the root."""
    ids: list[int] = field(default_factory=list)
    """Committed tokens behind the engine's trunk."""
    children: list[Branch] = field(default_factory=list)
    is_expanded: bool = False

    def grow(self, node: Node, token_id: int) -> Branch:
        """A new branch right behind the root."""
        self.children.append(Branch(node, token_id, None))
        return self.children[-1]

    def branches(self) -> Iterator[Branch]:
        """All of them, parents first."""
        stack = self.children[:]
        while stack:
            yield (branch := stack.pop())
            stack.extend(branch.children)


def follow(root: Root, data: bytes) -> Root | None:
    """The root after `data` was committed; None when no branch says all of it.

    Of several paths that do (other tokens for the same text) one goes on: where one ends with the
    text, that, because the target's tokens end there, too; then the likeliest, and with it those
    that part from it only inside the token at which the text ends.
    """
    end = root.committed_bytes + len(data)
    best: tuple[bool, float, Branch] | None = None
    stack = [(child, child.node.logprob) for child in root.children]
    while stack:
        branch, logprob = stack.pop()
        if not _agrees(branch.node, root.committed_bytes, data):
            continue
        if branch.node.end < end:
            stack += [(child, logprob + child.node.logprob) for child in branch.children]
        elif best is None or (branch.node.end == end, logprob) > best[:2]:
            best = branch.node.end == end, logprob, branch
    return None if best is None else _moved(root, best[2], end, data)


def _moved(root: Root, branch: Branch, end: int, data: bytes) -> Root:
    """A root at the token that ends where the text does; else at the one before it."""
    top = branch if branch.node.end == end else branch.parent
    moved = Root(end, [*root.ids, *(top.path() if top else [])])
    moved.is_expanded = top.is_expanded if top else root.is_expanded
    for child in top.children if top else root.children:
        if child.node.end > end and _agrees(child.node, root.committed_bytes, data):
            child.parent = None
            moved.children.append(child)
    return moved


def _agrees(node: Node, base: int, data: bytes) -> bool:
    """Whether a node says what was committed at `base`, as far as both go."""
    behind = base - node.start
    text = node.text[max(behind, 0) :]
    rest = data[max(-behind, 0) :]
    return not node.ends and text[: len(rest)] == rest[: len(text)]
