"""What a run is asked to be: who answers, under which conditions, and in which order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

RANDOM = "random"
"""The assistant that is of no use: whatever comes costs, and nothing that it says is right."""


@dataclass(frozen=True, slots=True)
class Pair:
    """The two models and what they may use."""

    target: str
    assistant: str
    """A name, or RANDOM."""
    dtype: str = "auto"
    threads: int = 1
    """Of each draft node."""
    target_threads: int | None = None
    target_cores: tuple[int, ...] | None = None
    assistant_cores: tuple[int, ...] | None = None
    verify_address: str | None = None
    """A verify node that runs already; None starts one here."""
    remembers: bool = False
    """Whether draft nodes search earlier answers, and keep what they have read: of prompts that are
    asked again and again, as here, they would know everything."""

    @property
    def shares_cores(self) -> bool:
        """Whether a real target that is started here and the draft nodes run on the same cores."""
        if self.verify_address is not None:
            return False
        mine, theirs = self.target_cores, self.assistant_cores
        return mine is None or theirs is None or not set(mine).isdisjoint(theirs)


@dataclass(frozen=True, slots=True)
class Step:
    """A simulated target's."""

    step_ms: float
    slope: float


@dataclass(frozen=True, slots=True)
class Conditions:
    """Of one row of the report."""

    step: Step | None
    """None: the target is real."""
    piece_ms: float | None
    """None: the assistant is real."""
    round_trip_ms: float
    sessions: int
    edges: bool
    """Whether each session has a draft node of its own."""

    @property
    def num_draft_nodes(self) -> int:
        return self.sessions if self.edges else 1


@dataclass(frozen=True, slots=True)
class Sweep:
    """All combinations that are asked for."""

    steps: Sequence[Step | None] = (None,)
    pieces_ms: Sequence[float | None] = (None,)
    round_trips_ms: Sequence[float] = (0.0,)
    sessions: Sequence[int] = (1,)
    edges: bool = False

    def of(self, step: Step | None) -> Iterator[Conditions]:
        """Those with this step, in an order in which neighbours share most processes."""
        for round_trip_ms in self.round_trips_ms:
            for piece_ms in self.pieces_ms:
                for sessions in self.sessions:
                    yield Conditions(step, piece_ms, round_trip_ms, sessions, self.edges)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Files that a simulation takes its answers and its drafts from."""

    answers: Path
    choices: Path
    """What the real assistant would say; grows with what is asked for the first time."""
    notes: Path
    """Where the draft nodes of this run write what they lacked."""
