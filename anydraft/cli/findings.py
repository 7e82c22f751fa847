"""What `anydraft doctor` finds out, one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from anydraft.errors import AnydraftError

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


def problem_and_fix(error: AnydraftError) -> tuple[str, str]:
    """The fix is the last sentence of an error, or what follows its last colon."""
    message = str(error)
    separator = ". " if message.endswith(".") and ". " in message else ": "
    problem, _, fix = message.rpartition(separator)
    return (problem, fix) if problem else (message, "see the log of that node")
