"""One sentence for whoever asks whether their pair pays on their network."""

from __future__ import annotations

from collections.abc import Sequence

from anydraft.bench.figures import Figures
from anydraft.bench.plan import RANDOM

_PAYS = 1.05
"""Below it nobody notices."""
_COSTS = 0.97
"""Below it somebody would."""


def sentence(target: str, assistant: str, rows: Sequence[Figures]) -> str:
    """`rows` as `figures_of` makes them."""
    known = [row for row in rows if row["gain"] is not None]
    if not known:
        return "Nothing was measured, so nothing can be said."
    if assistant == RANDOM:
        worst = min(row["gain"] for row in known)
        return f"With an assistant of no use, {target} keeps {worst:.2f} of its own speed at least."
    pair = f"drafting for {target} with {assistant}"
    parts = [_part(row) for row in known]
    losing = [row for row in known if row["gain"] < _COSTS]
    paying = [row for row in known if row["gain"] >= _PAYS]
    what = ", ".join(parts)
    if len(paying) == len(known):
        lead = "It pays"
    elif paying:
        lead = "It pays in part"
    elif losing:
        lead = "It does not pay"
    else:
        lead = "It hardly matters"
    least = min((row["smallest_gain"] for row in known if row["smallest_gain"]), default=None)
    tail = "" if least is None else f"; the slowest single prompt got {least:.2f}x"
    return f"{lead}: {pair} makes answers {what}{tail}."


def _part(row: Figures) -> str:
    where = f"at a round trip of {row['round_trip_ms']:g} ms"
    if row["sessions"] > 1:
        where += f" with {row['sessions']} sessions"
    return f"{row['gain']:.2f}x as fast {where}"
