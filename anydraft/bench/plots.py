"""Plots as inline SVG, in the colours that the page defines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 720
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 12, 44
_COLOURS = 6
_BAR = 22
_LEGEND_LINE = 18


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Bar:
    name: str
    value: float
    least: float | None
    """Shown as a thin mark in the bar."""


def lines(found: Sequence[Line], x_label: str, y_label: str) -> str:
    """Each with its points; 1 is marked, for these are ratios."""
    height = 280
    points = [point for line in found for point in line.points]
    if not points:
        return ""
    x_most = max(x for x, _ in points) or 1.0
    step, y_most = _ticks(max(1.2, *(y for _, y in points)))
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, height - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / x_most * inner_width, _TOP + (1 - y / y_most) * inner_height

    body = [
        _horizontal(place(0, i * step)[1], f"{i * step:g}") for i in range(_count(y_most, step))
    ]
    body.append(_reference(place(0, 1)[1]))
    for x in sorted({x for x, _ in points}):
        body.append(_text(place(x, 0)[0], height - _BOTTOM + 16, f"{x:g}", "middle"))
    body.append(_text(_LEFT + inner_width / 2, height - 8, x_label, "middle"))
    body.append(_text(_LEFT, _TOP - 2, y_label, "start"))
    for number, line in enumerate(found):
        colour = f"var(--c{number % _COLOURS})"
        at = [place(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in at]
        body.append(_legend(height + number * _LEGEND_LINE, colour, line.name))
    return _svg(height + len(found) * _LEGEND_LINE + 4, body, f"{y_label} by {x_label}")


def bars(found: Sequence[Bar], label: str) -> str:
    """One below the other; 1 is marked."""
    if not found:
        return ""
    left = 130
    step, most = _ticks(max(1.2, *(bar.value for bar in found)))
    scale = (_WIDTH - left - 50) / most
    height = len(found) * _BAR + _BOTTOM
    body = []
    for i in range(_count(most, step)):
        x = left + i * step * scale
        body.append(
            f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - _BOTTOM}"/>'
        )
        body.append(_text(x, height - _BOTTOM + 16, f"{i * step:g}", "middle"))
    for number, bar in enumerate(found):
        y = number * _BAR + 4
        width = bar.value * scale
        body.append(_text(left - 8, y + 12, bar.name, "end"))
        body.append(
            f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{_BAR - 8}" '
            'fill="var(--c0)" opacity=".8"/>'
        )
        body.append(_text(left + width + 5, y + 12, f"{bar.value:.2f}", "start"))
        if bar.least is not None:
            x = left + bar.least * scale
            body.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 2}" y2="{y + _BAR - 6}" '
                'stroke="var(--c1)" stroke-width="2"/>'
            )
    one = left + scale
    body.append(f'<line class="one" x1="{one:.1f}" x2="{one:.1f}" y1="0" y2="{height - _BOTTOM}"/>')
    body.append(_text(left, height - 8, label, "start"))
    return _svg(height, body, label)


def stacks(found: Sequence[tuple[str, Sequence[tuple[str, float]]]]) -> str:
    """Bars made of parts, which have the same names in all of them."""
    left = 130
    totals = [sum(max(value, 0.0) for _, value in parts) for _, parts in found]
    scale = (_WIDTH - left - 70) / (max(totals) or 1.0)
    body = []
    for row, ((name, parts), whole) in enumerate(zip(found, totals, strict=True)):
        x, y = float(left), row * (_BAR + 8) + 4
        body.append(_text(left - 8, y + 15, name, "end"))
        for number, (_, value) in enumerate(parts):
            width = max(value, 0.0) * scale
            body.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" '
                f'fill="var(--c{number % _COLOURS})"/>'
            )
            x += width
        body.append(_text(x + 5, y + 15, f"{whole:.1f}", "start"))
    height = len(found) * (_BAR + 8) + 4
    names = [part for part, _ in found[0][1]] if found else []
    for number, part in enumerate(names):
        colour = f"var(--c{number % _COLOURS})"
        body.append(_legend(height + 14 + number * _LEGEND_LINE, colour, part))
    return _svg(height + 14 + len(names) * _LEGEND_LINE, body, "milliseconds a round")


def _ticks(most: float) -> tuple[float, float]:
    """The distance of the marks on an axis, and where it ends."""
    rough = most / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    return step, math.ceil(most / step) * step


def _count(most: float, step: float) -> int:
    return round(most / step) + 1


def _horizontal(y: float, label: str) -> str:
    line = f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + _text(_LEFT - 8, y + 4, label, "end")


def _reference(y: float) -> str:
    return f'<line class="one" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _legend(y: float, colour: str, name: str) -> str:
    mark = f'<rect x="{_LEFT}" y="{y:.1f}" width="12" height="12" fill="{colour}"/>'
    return mark + _text(_LEFT + 18, y + 10, name, "start")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(height: float, body: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(body)}</svg>'
    )
