"""What a simulated engine knows of the real one without loading it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from draft_node.engines.base import AssistantEngine


@dataclass(frozen=True, slots=True)
class EngineFacts:
    description: str
    context_tokens: int
    vocab_size: int
    eos_ids: frozenset[int]

    @classmethod
    def of(cls, engine: AssistantEngine) -> EngineFacts:
        return cls(engine.description, engine.context_tokens, engine.vocab_size, engine.eos_ids)

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> EngineFacts:
        """Raises KeyError, TypeError or ValueError for what is none."""
        eos_ids: Iterable[Any] = entry["eos_ids"]
        return cls(
            description=str(entry["description"]),
            context_tokens=int(entry["context_tokens"]),
            vocab_size=int(entry["vocab_size"]),
            eos_ids=frozenset(int(i) for i in eos_ids),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "description": self.description,
            "context_tokens": self.context_tokens,
            "vocab_size": self.vocab_size,
            "eos_ids": sorted(self.eos_ids),
        }
