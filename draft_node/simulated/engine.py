"""An assistant whose passes take a set time and no core; an oracle says what it chooses."""

from __future__ import annotations

from collections.abc import Sequence

from draft_node.engines.base import AssistantState, Choices, Path
from draft_node.engines.checks import check_feed, check_truncate, closed_state
from draft_node.simulated.oracles import Oracle
from draft_node.simulated.pace import CHUNK_TOKENS, MAX_PATHS, Deadline, Pace


class SimulatedEngine:
    """See `draft_node.engines.base.AssistantEngine`."""

    max_paths = MAX_PATHS
    chunk_tokens = CHUNK_TOKENS

    def __init__(self, oracle: Oracle, pace: Pace) -> None:
        self.oracle = oracle
        self.pace = pace
        facts = oracle.facts
        self.context_tokens = facts.context_tokens
        self.vocab_size = facts.vocab_size
        self.eos_ids = facts.eos_ids
        self.description = f"simulated, {pace.piece_ms:g} ms a piece: {facts.description}"

    def open(self) -> AssistantState:
        return SimulatedState(self)


class SimulatedState:
    """See `draft_node.engines.base.AssistantState`. Keeps ids where a real one keeps a KV cache."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._voice = engine.oracle.open()
        self._trunk: list[int] = []
        self._branches: set[Path] = set()
        """Every path behind the trunk that was computed, with all paths that it begins with."""
        self._is_closed = False

    @property
    def length(self) -> int:
        return len(self._trunk)

    def read(self, ids: Sequence[int], *, wanted: bool) -> Choices | None:
        self._require_open()
        check_feed(ids, self.length, self._engine)
        deadline = Deadline(self._engine.pace.read_ms(len(ids)))
        self._branches.clear()
        self._trunk += ids
        choices = self._voice.choose(self._trunk, [()])[0] if wanted else None
        deadline.sleep()
        return choices

    def expand(self, paths: Sequence[Path]) -> list[Choices]:
        self._require_open()
        new = {
            path[:end]
            for path in paths
            for end in range(1, len(path) + 1)
            if path[:end] not in self._branches
        }
        if new:
            held = self.length + len(self._branches)
            check_feed([path[-1] for path in new], held, self._engine)
        deadline = Deadline(self._engine.pace.pass_ms(max(len(new), 1)))
        self._branches |= new
        choices = self._voice.choose(self._trunk, paths)
        deadline.sleep()
        return choices

    def advance(self, path: Path) -> int:
        self._require_open()
        count = 0
        while count < len(path) and path[: count + 1] in self._branches:
            count += 1
        head = path[:count]
        self._trunk += head
        self._branches = {
            branch[count:]
            for branch in self._branches
            if len(branch) > count and branch[:count] == head
        }
        return count

    def truncate(self, length: int) -> None:
        self._require_open()
        check_truncate(length, self.length)
        del self._trunk[length:]
        self._branches.clear()

    def close(self) -> None:
        self._is_closed = True
        self._voice.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise closed_state()
