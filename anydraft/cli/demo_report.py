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

_ROUNDING_DTYPES = ("bfloat16", "float16")

_COLUMNS = ("prompt", "tokens", "alone", "assisted", "gain", "kept", "a step", "bytes", "same")
_TABLE_WIDTH = 72
_NARROW_COLUMNS = ("prompt", "alone", "assisted", "gain", "same")
_NARROW_TABLE_WIDTH = 40
_LEGEND = (
    "kept: share of the drafted tokens that the target accepted; a step: tokens that each step of "
    "the target gave; bytes: between the nodes, both ways; same: all tokens are the target's own."
)


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
    """How the target is run, as the node says it."""
    dtype: str | None
    """Precision of the target's weights, such as "float32"; None where the node does not say."""
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
            title="tokens per second, the target alone and assisted",
            box=box.SIMPLE,
            pad_edge=False,
            collapse_padding=True,
        )
        columns = _COLUMNS if console.width >= _TABLE_WIDTH else _NARROW_COLUMNS
        for name in columns:
            table.add_column(name, justify="right", no_wrap=True)
        for label, row in zip(self._labels(), [*self.rows, total(self.rows)], strict=True):
            cells = dict(zip(_COLUMNS, [label, *_cells(row)], strict=True))
            table.add_row(*(cells[name] for name in columns))
        # A number that is cut off says something else.
        table.width = _NARROW_TABLE_WIDTH if console.width < _NARROW_TABLE_WIDTH else None
        console.print(table, crop=False)
        console.print(_LEGEND)
        for label, row in zip(self._labels(), self.rows, strict=False):
            if row.parting is not None:
                console.print(self._explain(label, row.parting))
        console.print(f"\n[bold]{self._verdict()}[/]\n")

    def _labels(self) -> list[str]:
        """The prompts were shown with these numbers."""
        return [*(str(number) for number in range(1, len(self.rows) + 1)), "all"]

    def _verdict(self) -> str:
        whole = total(self.rows)
        gain = f"{whole.speedup:.2f} times as fast as the target alone"
        if whole.identical:
            return f"{gain}, and every one of the {whole.tokens} tokens is the same."
        if self.is_lossless:
            return f"{gain}; the answers part at near ties only, which {self.dtype} rounds."
        return f"{gain}, but the answers are not the same. This must not happen: please report it."

    def as_json(self) -> dict[str, object]:
        return {
            "target": self.target,
            "assistant": self.assistant,
            "engine": self.engine,
            "dtype": self.dtype,
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
        return parting.is_near_tie and self.dtype in _ROUNDING_DTYPES

    def _explain(self, label: str, parting: Parting) -> str:
        lead = "far" if parting.margin is None else f"{parting.margin:.2f} nats"
        where = f"Answer {label} parts at token {parting.index}; alone, that one led by {lead}"
        if self._may_part(parting):
            return f"{where}: a near tie, which {self.dtype} rounds either way."
        return f"{where}: too far for rounding."


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
        str(row.tokens),
        f"{row.target_only_rate:.1f}",
        f"{row.assisted_rate:.1f}",
        f"{row.speedup:.2f}x",
        f"{row.acceptance:.0%}",
        f"{row.tokens_per_round:.2f}",
        str(row.wire_bytes),
        "yes" if row.identical else "NO",
    ]
