"""What `anydraft doctor` finds out, one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`fix` says what to do about a warn or a fail."""

    name: str
    state: State
    detail: str
    fix: str | None = None


def ok(name: str, detail: str) -> Finding:
    return Finding(name, "ok", detail)


def warn(name: str, detail: str, fix: str) -> Finding:
    return Finding(name, "warn", detail, fix)


def fail(name: str, detail: str, fix: str) -> Finding:
    return Finding(name, "fail", detail, fix)
