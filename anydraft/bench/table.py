"""What a run found, on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from anydraft.bench.arms import ASSISTED, TARGET_ONLY
from anydraft.bench.figures import Figures

if TYPE_CHECKING:
    from rich.console import Console

_COLUMNS = ("", "gain", "90 %", "least", "a step", "kept", "bound", "first")
_LEGEND = (
    "gain: tokens per second over those of the target alone, whole answers; 90 %: its range by "
    "resampling prompts; least: of any prompt; a step: tokens that each step gave; kept: share of "
    "the checked draft tokens; bound: share of the gain that so many tokens a step could bring; "
    "first: time to the first token, in units of the target alone's."
)


def show_row(console: Console, figures: Figures) -> None:
    """One table: a line for each category, and one for all."""
    from rich import box
    from rich.table import Table

    table = Table(title=title_of(figures), box=box.SIMPLE, pad_edge=False, collapse_padding=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for category, of_category in figures["categories"].items():
        table.add_row(category, *_cells(of_category))
    table.add_row("all", *_cells(figures), style="bold")
    console.print(table, crop=False)
    alone, assisted = (_number(_rate(figures, arm), 1) for arm in (TARGET_ONLY, ASSISTED))
    console.print(f"Tokens per second: {alone} alone, {assisted} assisted.", soft_wrap=True)
    console.print(_round_of(figures), soft_wrap=True)
    console.print(_ids_of(figures), soft_wrap=True)
    if figures.get("peer_gain"):
        console.print(
            f"Against transformers' own assisted generation: {figures['peer_gain']:.2f}x "
            f"(which gains {_number(figures['peer_own_gain'])}x over its generate).",
            soft_wrap=True,
        )
    if figures["incomplete_measurements"]:
        console.print(
            f"In {figures['incomplete_measurements']} measurements the simulated assistant did not "
            f"know {figures['missed_choices']} choices that the real one would have made; it does "
            "now: run it again.",
            soft_wrap=True,
        )


def show_legend(console: Console) -> None:
    console.print(_LEGEND)


def title_of(figures: Figures) -> str:
    parts = []
    if figures["step_ms"] is not None:
        parts.append(f"step {figures['step_ms']:g} ms, slope {figures['slope']:g}")
    if figures["piece_ms"] is not None:
        parts.append(f"piece {figures['piece_ms']:g} ms")
    parts.append(f"round trip {figures['round_trip_ms']:g} ms")
    sessions = figures["sessions"]
    if sessions > 1:
        nodes = "a draft node each" if figures["edges"] else "one draft node"
        parts.append(f"{sessions} sessions, {nodes}")
    return ", ".join(parts)


def _rate(figures: Figures, arm: str) -> float | None:
    of_arm = figures["arms"].get(arm, {})
    rate: float | None = of_arm.get("rate_of_all_sessions", of_arm.get("rate"))
    return rate


def _cells(figures: Figures) -> Sequence[str]:
    spread = figures["gain_spread"]
    acceptance, bound = figures["acceptance"], figures["share_of_bound"]
    return [
        _number(figures["gain"]),
        f"{spread['low']:.2f}-{spread['high']:.2f}" if spread else "",
        _number(figures["smallest_gain"]),
        _number(figures["tokens_per_step"]),
        "" if acceptance is None else f"{acceptance:.0%}",
        "" if bound is None else f"{bound:.0%}",
        _number(figures["first_token_ratio"]),
    ]


def _round_of(figures: Figures) -> str:
    parts: dict[str, Any] = figures["round"][ASSISTED]
    if parts["forward_ms"] is None:
        return "The answers have one step each: of a round nothing can be said."
    bytes_a_token = _number(parts["bytes_per_accepted_token"], 0)
    total = parts["forward_ms"] + parts["waiting_ms"] + parts["rest_ms"]
    return (
        f"A round takes {total:.1f} ms: {parts['forward_ms']:.1f} in the model, "
        f"{parts['waiting_ms']:.1f} waiting for drafts, {parts['rest_ms']:.1f} for all the rest "
        f"(alignment, messages and their way); meanwhile {parts['drafting_ms'] or 0:.1f} ms of "
        f"drafting, {bytes_a_token or 'no'} bytes an accepted token."
    )


def _ids_of(figures: Figures) -> str:
    if figures["ids_equal"]:
        return "All ids are the target's own."
    first = figures["differences"][0]
    margin = first["margin"]
    near = "" if margin is None else f", where the target's own led by {margin:.3f} nats"
    return (
        f"{len(figures['differences'])} answers differ; {first['arm']} parts at token "
        f"{first['index']} of {first['prompt']!r}{near}."
    )


def _number(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"
