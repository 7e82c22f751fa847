"""Recorded answers: what a real target said to a prompt, so that a simulated one can say it again.

One JSON object a line. Field names are those of `Recording`; `cat` is read as `category`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anydraft.errors import InvalidRequestError, NotFoundError

GREEDY = 0.0


@dataclass(frozen=True, slots=True)
class Recording:
    """One answer of a target, as ids: text cannot be turned back into the same ids."""

    category: str
    prompt: str
    """What the user says, in a chat of one message."""
    ids: tuple[int, ...]
    """The answer, its end of sequence included where it has one."""
    target: str = ""
    """The model's name, whose tokenizer these ids belong to; empty where nobody wrote it down."""
    temperature: float = GREEDY
    seed: int | None = None
    """Of the draws, when the temperature is above 0."""
    ended: bool | None = None
    """Whether the last id ended the answer; None where nobody wrote it down."""
    margins: tuple[float, ...] = ()
    """By how many nats each token led the next best one (greedy), one for each id; negative where a
    draw took another one. Empty where nobody measured it."""


def read_recordings(path: Path) -> list[Recording]:
    """Raises NotFoundError, and InvalidRequestError naming the line that is wrong."""
    recordings = []
    for number, entry in read_json_lines(path):
        try:
            recordings.append(_recording(entry))
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidRequestError(
                f"line {number} of {path} is no recorded answer ({error!r}): each needs `prompt`, "
                "`ids` and `category`. Make the file with anydraft bench --record",
                reason="BENCH_FILE_INVALID",
            ) from None
    if not recordings:
        raise InvalidRequestError(
            f"{path} holds no recorded answers: make some with anydraft bench --record",
            reason="BENCH_FILE_INVALID",
        )
    return recordings


def write_recordings(path: Path, recordings: Iterable[Recording]) -> None:
    lines = [json.dumps(asdict(recording), ensure_ascii=False) for recording in recordings]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_json_lines(path: Path) -> list[tuple[int, Mapping[str, Any]]]:
    """The objects of a file, with the numbers of their lines; empty lines are left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NotFoundError(
            f"there is no file {path}: check its name", reason="BENCH_FILE_NOT_FOUND"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(
            f"{path} cannot be read ({error}): give a text file with one JSON object a line",
            reason="BENCH_FILE_INVALID",
        ) from None
    found: list[tuple[int, Mapping[str, Any]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            raise InvalidRequestError(
                f"line {number} of {path} is no JSON object: give one a line",
                reason="BENCH_FILE_INVALID",
            )
        found.append((number, entry))
    return found


def _recording(entry: Mapping[str, Any]) -> Recording:
    seed = entry.get("seed")
    return Recording(
        category=str(entry["cat"] if "cat" in entry else entry["category"]),
        prompt=str(entry["prompt"]),
        ids=tuple(_ids(entry["ids"])),
        target=str(entry.get("target", "")),
        temperature=float(entry.get("temperature", GREEDY)),
        seed=None if seed is None else int(seed),
        ended=entry.get("ended"),
        margins=tuple(float(margin) for margin in entry.get("margins", ())),
    )


def _ids(values: Sequence[Any]) -> list[int]:
    ids = [int(value) for value in values]
    if not ids or min(ids) < 0:
        raise ValueError("`ids` must be one id or more, none below 0")
    return ids
