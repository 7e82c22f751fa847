"""The report as one page: nothing is fetched, light and dark as the reader has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from anydraft.bench.arms import ASSISTED, PEER_ALONE, PEER_ASSISTED, TARGET_ONLY
from anydraft.bench.figures import Figures
from anydraft.bench.plots import Bar, Line, bars, lines, stacks
from anydraft.bench.table import title_of

_ARMS = {
    TARGET_ONLY: "target only",
    ASSISTED: "assisted",
    PEER_ALONE: "transformers",
    PEER_ASSISTED: "transformers, assisted",
}
_PARTS = {"forward_ms": "model", "waiting_ms": "waiting for drafts", "rest_ms": "the rest"}

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #667; --paper: #fff; --grid: #dde;
  --c0: #2563a8; --c1: #c2571a; --c2: #2f8f5b; --c3: #8a4fae; --c4: #a3812a; --c5: #b0355f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ec; --dim: #9aa3ad; --paper: #14171b;
  --grid: #2c3238; --c0: #6aa8e8; --c1: #f0935a; --c2: #6cc795; --c3: #c493e3; --c4: #d9b95f;
  --c5: #e87aa0; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.5rem; }
.verdict { font-size: 1.15rem; border-left: 4px solid var(--c0); padding-left: 1rem; }
.dim { color: var(--dim); font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid var(--grid); }
th:first-child, td:first-child { text-align: left; }
tr.all td { font-weight: 600; }
svg { max-width: 100%; height: auto; display: block; margin: 1rem 0; }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .grid { stroke: var(--grid); } svg .one { stroke: var(--dim); stroke-dasharray: 4 3; }
"""


def page(report: Mapping[str, Any]) -> str:
    """`report` as it stands in the JSON."""
    rows: Sequence[Figures] = report["simulated"] or report["real_rows"]
    pair = report["pair"]
    body = [
        f"<h1>{escape(str(pair['target']))} with {escape(str(pair['assistant']))}</h1>",
        f'<p class="verdict">{escape(report["verdict"])}</p>',
    ]
    if len(rows) > 1:
        body += ["<h2>Gain over the target alone</h2>", _gains(rows)]
    for row in rows:
        body += _row(row)
    body += ["<h2>Where it was measured</h2>", _facts(report["machine"]), _facts(pair)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>anydraft bench</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _gains(rows: Sequence[Figures]) -> str:
    """By round trip, or by the number of sessions where only that differs; one line for each
    combination of the rest."""
    by_trip = len({row["round_trip_ms"] for row in rows}) > 1
    x = "round_trip_ms" if by_trip else "sessions"
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["gain"] is not None:
            rest = dict(row) | {x: 0 if by_trip else 1}
            name = title_of(rest).replace(", round trip 0 ms", "" if by_trip else ", no round trip")
            found.setdefault(name, []).append((row[x], row["gain"]))
    label = "round trip, ms" if by_trip else "sessions at once"
    return lines([Line(name, sorted(points)) for name, points in found.items()], label, "gain")


def _row(row: Figures) -> list[str]:
    categories = row["categories"]
    gains = [
        Bar(name, of_category["gain"], of_category["smallest_gain"])
        for name, of_category in categories.items()
        if of_category["gain"] is not None
    ]
    parts = [
        (_ARMS[arm], [(label, row["round"][arm][key] or 0.0) for key, label in _PARTS.items()])
        for arm in (TARGET_ONLY, ASSISTED)
        if row["round"][arm]["forward_ms"] is not None
    ]
    body = [f"<h2>{escape(title_of(row))}</h2>", bars(gains, "gain (thin: of the slowest prompt)")]
    body.append(_table(row))
    if parts:
        body += ["<p>Where a round's time goes, in milliseconds:</p>", stacks(parts)]
        body.append(
            '<p class="dim">From what the nodes report. “The rest” is alignment, acceptance, the '
            "event loop and messages with their way to whoever asked, which cannot be told apart "
            "from outside; drafting goes on beside all of it "
            f"({_text(row['round'][ASSISTED]['drafting_ms'])} ms a round).</p>"
        )
    body.append(_ids(row))
    return body


def _table(row: Figures) -> str:
    heads = [
        "",
        "prompts",
        "gain",
        "90 % range",
        "decoding gain",
        "smallest",
        "tokens a step",
        "acceptance",
        "share of bound",
        "first token",
        "bytes a token",
    ]
    lines_of = [_cells(name, found) for name, found in row["categories"].items()]
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    rows = "".join(f"<tr>{cells}</tr>" for cells in lines_of)
    rows += f'<tr class="all">{_cells("all", row)}</tr>'
    rates = ", ".join(
        f"{_ARMS[arm]} {_text(found.get('rate_of_all_sessions', found['rate']))}"
        for arm, found in row["arms"].items()
    )
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        f'</div><p class="dim">Tokens per second: {escape(rates)}.</p>'
    )


def _cells(name: str, found: Figures) -> str:
    spread = found["gain_spread"]
    cells = [
        str(found["prompts"]),
        _text(found["gain"]),
        f"{spread['low']:.2f}–{spread['high']:.2f}" if spread else "",
        _text(found["decoding_gain"]),
        _text(found["smallest_gain"]),
        _text(found["tokens_per_step"]),
        _text(found["acceptance"]),
        _text(found["share_of_bound"]),
        f"{_text(found['first_token_ratio'])}×",
        _text(found["bytes_per_accepted_token"], 0),
    ]
    return f"<td>{escape(name)}</td>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells)


def _ids(row: Figures) -> str:
    if row["ids_equal"]:
        return "<p>All ids are the target's own.</p>"
    found = "".join(
        f"<li>{escape(d['arm'])} parts at token {d['index']} of “{escape(d['prompt'])}”, where the "
        f"target's own id led by {_text(d['margin'], 3) or 'an unknown number of'} nats</li>"
        for d in row["differences"]
    )
    return f"<p>Ids differ:</p><ul>{found}</ul>"


def _facts(facts: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name}: {value}" for name, value in facts.items() if value is not None)
    return f'<p class="dim">{escape(shown)}</p>'


def _text(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"
