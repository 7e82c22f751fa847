"""Where an answer goes on when the verify node that makes it is lost, and for how long to try."""

from __future__ import annotations

import time

from anydraft.errors import AnydraftError, ResourceExhaustedError, UnavailableError
from draft_node.answer_progress import AnswerProgress
from draft_node.verify_nodes import VerifyNode, VerifyNodes

RECONNECT_S = 10.0
"""For which an answer that has begun looks for a verify node that goes on with it: what a node
takes to be found by its watch once it is back, and not what loading a large target takes."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0

_OF_THE_NODE = frozenset(
    {
        "TARGET_STOPPED",
        "FINGERPRINT_MISMATCH",
        "PROTOCOL_REVISION_MISMATCH",
        "MODEL_NOT_SERVED",
        "CANCELLED",
    }
)
"""Reasons of other kinds that say something of a node, not of the request."""


class Failover:
    """Of one answer."""

    def __init__(self, nodes: VerifyNodes, patience_s: float) -> None:
        self._nodes = nodes
        self._patience_s = patience_s
        self._failed: set[VerifyNode] = set()
        """Those that were left since the answer last grew."""
        self._since = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S

    def first(self, progress: AnswerProgress) -> VerifyNode:
        """Raises UnavailableError where no node may make this answer."""
        node = self._nodes.best(progress.fingerprint)
        if node is None:
            raise UnavailableError(
                f"No verify node of {self._nodes.addresses} goes on with this answer: others began "
                "it. Ask a draft node that dials those, or ask anew.",
                reason="NO_VERIFY_NODE_LEFT",
            )
        return node

    def grew(self) -> None:
        """The answer got a step further."""
        self._since = time.monotonic()
        self._failed.clear()
        self._pause_s = _FIRST_PAUSE_S

    async def next(
        self, progress: AnswerProgress, left: VerifyNode, error: AnydraftError | None
    ) -> VerifyNode:
        """Who is to go on, after `left`, which made it last, and which `error` ended, or which is
        going away. Raises `error` when it is the request's own, or nobody is left: at once for an
        answer that has not begun, for which the client asks again, and else when the patience is
        at its end."""
        self._failed.add(left)
        if error is not None and not (progress.may_go_on and _is_of_the_node(error)):
            raise error
        while (node := self._nodes.best(progress.fingerprint, but=self._failed)) is None:
            left_s = self._since + self._patience_s - time.monotonic()
            if error is not None and (left_s <= 0 or not progress.has_begun):
                raise error
            await self._nodes.change(min(self._pause_s, max(left_s, 0.0)))
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._failed.clear()  # whoever may go on with it is among them
        return node


def _is_of_the_node(error: AnydraftError) -> bool:
    return (
        isinstance(error, UnavailableError | ResourceExhaustedError) or error.reason in _OF_THE_NODE
    )
