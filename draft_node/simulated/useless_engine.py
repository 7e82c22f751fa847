"""The real assistant, with its work and its confidence, whose choices are replaced by nonsense."""

from __future__ import annotations

from collections.abc import Sequence

from draft_node.engines.base import AssistantEngine, AssistantState, Choices, Path
from draft_node.simulated.facts import EngineFacts
from draft_node.simulated.oracles import nonsense


class UselessEngine:
    """See `draft_node.engines.base.AssistantEngine`."""

    def __init__(self, real: AssistantEngine) -> None:
        self.real = real
        self.facts = EngineFacts.of(real)
        self.description = f"of no use: {real.description}"
        self.context_tokens = real.context_tokens
        self.vocab_size = real.vocab_size
        self.eos_ids = real.eos_ids
        self.max_paths = real.max_paths
        self.chunk_tokens = real.chunk_tokens

    def open(self) -> AssistantState:
        return UselessState(self, self.real.open())


class UselessState:
    """See `draft_node.engines.base.AssistantState`."""

    def __init__(self, engine: UselessEngine, real: AssistantState) -> None:
        self._facts = engine.facts
        self._real = real

    @property
    def length(self) -> int:
        return self._real.length

    def read(self, ids: Sequence[int], *, wanted: bool) -> Choices | None:
        choices = self._real.read(ids, wanted=wanted)
        return None if choices is None else self._instead((self.length,))

    def expand(self, paths: Sequence[Path]) -> list[Choices]:
        self._real.expand(paths)
        return [self._instead((self.length, *path)) for path in paths]

    def advance(self, path: Path) -> int:
        return self._real.advance(path)

    def truncate(self, length: int) -> None:
        self._real.truncate(length)

    def close(self) -> None:
        self._real.close()

    def _instead(self, behind: Sequence[int]) -> Choices:
        return nonsense(behind, self._facts)
