"""What the demo found: a row for each prompt, as a table and as JSON."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from anydraft.machine import cpu_fact

if TYPE_CHECKING:
    from rich.console import Console

NEAR_TIE_NATS = 0.5
"""Four steps of bf16 between logits of 16 to 32."""


@dataclass(frozen=True)
class Parting:
    """Where an assisted answer goes another way than the target alone."""

    index: int
    """Of the first token that differs."""
    margin: float | None
    """By how many nats the target alone preferred its own token there; None when the other was not
    its second best."""

    @property
    def is_near_tie(self) -> bool:
        return self.margin is not None and self.margin <= NEAR_TIE_NATS


@dataclass(frozen=True)
class Row:
    """One prompt, both ways. Rates in target tokens per second of the whole request."""

    prompt: str
    tokens: int
    target_only_rate: float
    assisted_rate: float
    acceptance: float
    tokens_per_round: float
    wire_bytes: int
    parting: Parting | None
    """None: the ids are the same."""

    @property
    def speedup(self) -> float:
        return self.assisted_rate / self.target_only_rate

    @property
    def identical(self) -> bool:
        return self.parting is None


@dataclass(frozen=True)
class Report:
    target: str
    assistant: str
    engine: str
    """How the target is run, its precision included, as the node says it."""
    max_new_tokens: int
    rows: Sequence[Row]

    @property
    def is_lossless(self) -> bool:
        """In fp32 all ids are the same; in less, answers may part at near ties, because a pass over
        several tokens rounds otherwise than one over a single token."""
        return all(row.parting is None or self._may_part(row.parting) for row in self.rows)

    def show(self, console: Console) -> None:
        from rich import box
        from rich.table import Table

        table = Table(
            title="the target alone and assisted, tokens per second",
            box=box.SIMPLE,
            pad_edge=False,
            collapse_padding=True,
        )
        table.add_column("prompt", no_wrap=True, width=18)
        for name in ("ids", "alone", "assisted", "gain", "kept", "/step", "bytes", "same"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in [*self.rows, total(self.rows)]:
            table.add_row(*_cells(row))
        console.print(table)
        console.print(
            "ids: target tokens; kept: drafted tokens that stood; /step: tokens a step of the "
            "target; bytes: between the nodes, both ways; same: all ids identical."
        )
        for row in self.rows:
            if row.parting is not None:
                console.print(self._explain(row.prompt, row.parting))

    def as_json(self) -> dict[str, object]:
        return {
            "target": self.target,
            "assistant": self.assistant,
            "engine": self.engine,
            "max_new_tokens": self.max_new_tokens,
            "machine": {
                "cores": os.cpu_count(),
                "processor": cpu_fact("model name") or "unknown",
                "python": platform.python_version(),
            },
            "rows": [
                asdict(row) | {"identical": row.identical, "speedup": row.speedup}
                for row in [*self.rows, total(self.rows)]
            ],
        }

    def _may_part(self, parting: Parting) -> bool:
        return parting.is_near_tie and "float32" not in self.engine

    def _explain(self, prompt: str, parting: Parting) -> str:
        lead = "far" if parting.margin is None else f"{parting.margin:.2f} nats"
        where = f"{prompt[:18]!r} parts at token {parting.index}; alone, that one led by {lead}"
        if self._may_part(parting):
            return f"{where}: a near tie, which this precision rounds either way ({self.engine})."
        return f"{where}. This must not happen: report it, with this table."


def total(rows: Sequence[Row]) -> Row:
    """All prompts as one: rates over the summed times, shares weighted by tokens."""
    tokens = sum(row.tokens for row in rows)
    partings = [row.parting for row in rows if row.parting is not None]
    return Row(
        prompt="all",
        tokens=tokens,
        target_only_rate=tokens / sum(row.tokens / row.target_only_rate for row in rows),
        assisted_rate=tokens / sum(row.tokens / row.assisted_rate for row in rows),
        acceptance=sum(row.acceptance * row.tokens for row in rows) / tokens,
        tokens_per_round=tokens / sum(row.tokens / row.tokens_per_round for row in rows),
        wire_bytes=sum(row.wire_bytes for row in rows),
        parting=max(partings, key=_gravity, default=None),
    )


def _gravity(parting: Parting) -> float:
    return math.inf if parting.margin is None else parting.margin


def _cells(row: Row) -> list[str]:
    return [
        row.prompt,
        str(row.tokens),
        f"{row.target_only_rate:.1f}",
        f"{row.assisted_rate:.1f}",
        f"{row.speedup:.2f}x",
        f"{row.acceptance:.0%}",
        f"{row.tokens_per_round:.2f}",
        str(row.wire_bytes),
        "yes" if row.identical else "NO",
    ]
