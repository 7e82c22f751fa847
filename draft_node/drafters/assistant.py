"""Drafts by a small model, in its own tokens: the likeliest continuations, best first.

The engine's trunk is the assistant's own encoding of prompt and committed text as of the last new
root, grown since then by ids that were drafted and committed. A new root is needed only where text
was committed that was not drafted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from anydraft.errors import ContextFullError
from anydraft.text.common_prefix import common_prefix
from anydraft.text.mirror import AssistantMirror
from anydraft.text.tokenizer import TextTokenizer
from anydraft.text.tree import Node, Piece, TextTree
from anydraft.v1.prompt_pb2 import Prompt
from draft_node.drafters.branches import Branch, Root, follow
from draft_node.drafters.kept_prefixes import KeptPrefixes
from draft_node.drafters.thrift import ReadingPace, Thrift
from draft_node.engines.base import AssistantEngine, Choices

DEFAULT_MIN_PROBABILITY = 0.001
"""On recorded answers (30 ms a step, 8 ms a pass, 20 ms of round trip) 0.02, 0.005, 0.001 and 0
gain 1.44x, 1.54x, 1.55x and 1.54x: where nothing likelier is left, a pass is well spent on it."""

DEFAULT_MAX_CONTEXT_TOKENS = 4096
"""Memory of a session, and the time that it takes to read a long text before the first draft,
grow with it."""

_CHILDREN = 3
"""Pieces that one look at the assistant gives: its next choices are right less often than not even
in one of twenty places."""
_MAX_DEPTH = 32
"""Tokens of a path beyond the committed text: more than a target's step accepts of any."""
_MAX_KEPT_TOKENS = 1024
"""What is kept of a text that outgrows the assistant's context. It is all read again."""


@dataclass(frozen=True)
class AssistantDrafter:
    """See `draft_node.drafters.base.Drafter`."""

    engine: AssistantEngine
    tokenizer: TextTokenizer
    min_probability: float = DEFAULT_MIN_PROBABILITY
    """Paths less likely than this, from the committed text, are not drafted."""
    max_context_tokens: int = DEFAULT_MAX_CONTEXT_TOKENS
    """How much of a text a session holds in its cache, where the engine could hold more."""
    pace: ReadingPace = field(default_factory=ReadingPace)
    prefixes: KeptPrefixes | None = None
    """What sessions that ended have read; None keeps nothing."""

    @property
    def context_tokens(self) -> int:
        return min(self.engine.context_tokens, self.max_context_tokens)

    def __post_init__(self) -> None:
        self.tokenizer.check_vocabulary(self.engine.vocab_size)

    @property
    def description(self) -> str:
        return self.engine.description

    def open(self, prompt: Prompt, *, in_turn: bool = False, tenant: str = "") -> AssistantStream:
        """`in_turn`: the target computes on the same cores. A prompt is then read only once the
        target has read it, for the user would wait for the sum of both, and passes must pay
        (`Thrift`)."""
        return AssistantStream(self, prompt, in_turn=in_turn, tenant=tenant)


class AssistantStream:
    """See `draft_node.drafters.base.DraftStream`."""

    def __init__(
        self, drafter: AssistantDrafter, prompt: Prompt, *, in_turn: bool, tenant: str
    ) -> None:
        self._engine = drafter.engine
        self._context_tokens = drafter.context_tokens
        self._tokenizer = drafter.tokenizer
        self._min_logprob = math.log(max(drafter.min_probability, 1e-9))
        self._prompt = prompt
        self._is_closed = False
        self._prefixes = drafter.prefixes
        self._tenant = tenant
        self._state = drafter.engine.open()
        self._mirror: AssistantMirror | None = None
        self._unmirrored = ""
        """Committed text that the mirror has not heard of."""
        self._unfollowed = ""
        """Committed text that the root has not been moved along."""
        self._start = 0
        """Where in the mirror's ids the trunk begins."""
        self._trunk: list[int] = []
        """What the engine's trunk is to hold; the last of it is not read yet while there is no
        root."""
        self._root: Root | None = None
        self._branches: dict[Node, Branch] = {}
        self._thrift = Thrift(drafter.pace) if in_turn else None
        self.idle = in_turn
        self.needs_ms = 0.0

    def commit(self, text: str, *, turn_ms: float) -> None:
        self._unmirrored += text
        self._unfollowed += text
        self.idle = False
        self.needs_ms = 0.0
        if self._thrift is not None:
            self._thrift.committed(len(text.encode()), turn_ms)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._prefixes is None:
            self._state.close()
        else:
            held = self._trunk[: self._state.length]
            self._prefixes.keep(self._tenant, held, self._state)

    def worth(self, tree: TextTree) -> float:
        self._follow()
        if self._root is not None:
            best = next(self._unexpanded(self._root, tree), None)
            return math.exp(best.logprob) if best else 0.0
        # Of passes that read, only the last gives pieces.
        num_ids = len(self._trunk) - self._state.length
        return 1 / max(-(-num_ids // self._engine.chunk_tokens), 1)

    def grow(self, tree: TextTree, limit: int) -> None:
        self._follow()
        self._catch_up()
        try:
            if self._root is None:
                self._read(tree, limit)
            else:
                self._expand(self._root, tree, limit)
        except ContextFullError:
            self.idle = True
        if self._root is not None:
            self.idle = self.idle or not self._may_look_on(self._root, tree)

    def _may_look_on(self, root: Root, tree: TextTree) -> bool:
        place = next(self._unexpanded(root, tree), None)
        if place is None or self._thrift is None:
            return place is not None
        return self._thrift.pays(math.exp(place.logprob))

    def _follow(self) -> None:
        """Moves the root along text that was drafted; there is none where it was not."""
        if not self._unfollowed:
            return
        data, self._unfollowed = self._unfollowed.encode(), ""
        root, self._root = self._root, None
        if root is not None and not self._is_nearly_full(self._state.length + len(root.ids)):
            self._root = follow(root, data)
        branches = self._root.branches() if self._root is not None else ()
        self._branches = {branch.node: branch for branch in branches}

    def _catch_up(self) -> None:
        """The engine's trunk follows the root; where there is none, the committed text."""
        if self._root is None:
            if self._mirror is None or self._unmirrored:
                self._encode_committed_text()
        elif behind := self._root.ids:
            held = self._state.advance(tuple(behind))
            self._trunk += behind[:held]
            del behind[:held]

    def _encode_committed_text(self) -> None:
        """Cuts the trunk where it differs from the committed text's own encoding."""
        is_new = self._mirror is None
        if self._mirror is None:
            self._mirror = AssistantMirror(
                self._tokenizer, self._tokenizer.encode_prompt_leniently(self._prompt)
            )
        unchanged = self._mirror.append(self._unmirrored)
        self._unmirrored = ""
        ids = self._mirror.ids
        held, start = self._trunk[: self._state.length], self._start
        if self._is_nearly_full(len(ids) - start):
            self._start = len(ids) - min(self._context_tokens // 2, _MAX_KEPT_TOKENS)
        self._trunk = ids[self._start :]
        if is_new:
            same = self._take_over()
        else:
            known = unchanged - start
            same = common_prefix(held, self._trunk, known) if self._start == start else 0
        # What follows the last id is wanted, so it is read even when it is held.
        self._state.truncate(min(same, len(self._trunk) - 1))

    def _take_over(self) -> int:
        """Goes on from what an earlier session has read, if any has; returns how much of the trunk
        that is."""
        if (
            self._prefixes is None
            or (found := self._prefixes.take(self._tenant, self._trunk)) is None
        ):
            return 0
        self._state.close()
        self._state, held = found
        return common_prefix(held, self._trunk)

    def _is_nearly_full(self, length: int) -> bool:
        """Whether the trunk must begin later in the text. Late, because all is read again then."""
        context = self._context_tokens
        return length > context - min(64, context // 4)

    def _read(self, tree: TextTree, limit: int) -> None:
        """A chunk of what the trunk lacks; behind the last, the root's branches."""
        unread = self._trunk[self._state.length :]
        chunk = unread[: self._engine.chunk_tokens]
        is_last = len(chunk) == len(unread)
        if self._thrift is not None and (needs_ms := self._thrift.needs_ms(len(unread))):
            self.idle, self.needs_ms = True, needs_ms
            return
        started = time.perf_counter()
        choices = self._state.read(chunk, wanted=is_last)
        if choices is None:
            if self._thrift is not None:
                self._thrift.read(len(chunk), (time.perf_counter() - started) * 1e3)
        else:
            self._root = Root(tree.committed_bytes)
            self._hang(self._root, None, 0.0, choices, tree, limit)

    def _expand(self, root: Root, tree: TextTree, limit: int) -> None:
        """The likeliest places that were not looked at yet, as many as a pass takes."""
        wanted = min(self._engine.max_paths, max(limit // _CHILDREN, 1))
        places = list(islice(self._unexpanded(root, tree), wanted))
        if not places:
            self.idle = True
            return
        started = time.perf_counter()
        expanded = self._state.expand([place.path for place in places])
        if self._thrift is not None:
            self._thrift.passed((time.perf_counter() - started) * 1e3)
        for place, choices in zip(places, expanded, strict=True):
            limit -= self._hang(place.of, place.node, place.logprob, choices, tree, limit)

    def _unexpanded(self, root: Root, tree: TextTree) -> Iterator[_Place]:
        """By falling probability."""
        if not root.is_expanded:
            yield _Place(root, None, 0.0, tuple(root.ids))
        for held in tree.best_first():
            if held.logprob < self._min_logprob:
                return
            branch = self._branches.get(held.node)
            if branch is None or branch.is_expanded or held.node.ends or held.depth >= _MAX_DEPTH:
                continue
            yield _Place(branch, held.node, held.logprob, (*root.ids, *branch.path()))

    def _hang(
        self,
        of: Root | Branch,
        node: Node | None,
        logprob: float,
        choices: Choices,
        tree: TextTree,
        limit: int,
    ) -> int:
        """Hangs what may follow a place, at most `limit` pieces; returns how many."""
        of.is_expanded = True
        count = 0
        pieces = list(self._pieces(choices))
        if self._thrift is not None:
            self._thrift.looked(sum(math.exp(p.logprob) * len(p.text) for _, p in pieces))
        for token_id, piece in pieces:
            if count == limit or logprob + piece.logprob < self._min_logprob:
                break
            below = tree.num_pieces
            hung = tree.hang(piece, node)
            if hung is None:
                break
            count += tree.num_pieces - below
            if hung not in self._branches:
                self._branches[hung] = of.grow(hung, token_id)
        return count

    def _pieces(self, choices: Choices) -> Iterator[tuple[int, Piece]]:
        """No special token is draft text: it would mean nothing to the target."""
        pairs = zip(choices.token_ids, choices.logprobs, strict=False)
        return islice(self._sayable(pairs), _CHILDREN)

    def _sayable(self, choices: Iterator[tuple[int, float]]) -> Iterator[tuple[int, Piece]]:
        for token_id, logprob in choices:
            if token_id in self._engine.eos_ids:
                yield token_id, Piece(b"", logprob, ends=True)
            elif token_id >= self._tokenizer.id_limit or self._tokenizer.is_special(token_id):
                continue
            elif text := self._tokenizer.token_bytes(token_id):
                yield token_id, Piece(text, logprob)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the assistant may look next."""

    of: Root | Branch
    node: Node | None
    logprob: float
    """Of the path from the committed text."""
    path: tuple[int, ...]
