"""What a benchmark asks: prompts by category, how long the answers may get, what is expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from anydraft.bench.recordings import GREEDY, Recording, read_json_lines
from anydraft.bench.sources import HUMAN_EVAL, SPEC_BENCH, human_eval_lines, spec_bench_file
from anydraft.errors import InvalidRequestError

_T = TypeVar("_T")

SUITES = (HUMAN_EVAL, SPEC_BENCH)
"""Names that `--suite` takes besides a file's."""
_HUMAN_EVAL_CATEGORY = "humaneval"
_PLAIN_CATEGORY = "prompts"


@dataclass(frozen=True, slots=True)
class Task:
    category: str
    prompt: str
    """What the user says, in a chat of one message."""
    max_new_tokens: int
    temperature: float = GREEDY
    seed: int | None = None
    expected: tuple[int, ...] | None = None
    """The ids that must come, where they are known beforehand."""

    @property
    def label(self) -> str:
        """One line, for people."""
        line = " ".join(self.prompt.split())
        return line if len(line) <= 60 else f"{line[:57]}..."


def tasks_of_recordings(
    recordings: Sequence[Recording], suite: str | None, prompts: int | None, max_new_tokens: int
) -> list[Task]:
    """Raises InvalidRequestError when nothing of the suite was recorded."""
    chosen = [r for r in recordings if suite is None or _suite_of(r.category) == suite]
    if not chosen:
        raise InvalidRequestError(
            f"nothing of {suite} was recorded in that file: leave --suite out, or record it "
            "with anydraft bench --record",
            reason="BENCH_FILE_INVALID",
        )
    by_category = _by_category((recording.category, recording) for recording in chosen)
    tasks = []
    for recording in _spread(by_category, prompts):
        limit = min(max_new_tokens, len(recording.ids))
        tasks.append(
            Task(
                category=recording.category,
                prompt=recording.prompt,
                max_new_tokens=limit,
                temperature=recording.temperature,
                seed=recording.seed,
                expected=recording.ids[:limit],
            )
        )
    return tasks


def tasks_of_suite(
    suite: str, prompts: int | None, max_new_tokens: int, temperature: float, seed: int | None
) -> list[Task]:
    """`suite` is one of SUITES or a file: JSON lines with `prompt` or `turns`, and `category`.

    Raises InvalidRequestError, NotFoundError, and UnavailableError where a suite cannot be fetched.
    """
    by_category = _by_category(_pairs(suite))
    return [
        Task(category, prompt, max_new_tokens, temperature, seed)
        for category, prompt in _spread(
            {c: [(c, p) for p in found] for c, found in by_category.items()}, prompts
        )
    ]


def _pairs(suite: str) -> list[tuple[str, str]]:
    """Category and prompt of each line."""
    if suite == HUMAN_EVAL:
        return [(_HUMAN_EVAL_CATEGORY, _completion(entry)) for entry in human_eval_lines()]
    path = spec_bench_file() if suite == SPEC_BENCH else Path(suite)
    found = [_pair(entry, number, path) for number, entry in read_json_lines(path)]
    if not found:
        raise InvalidRequestError(
            f"{path} holds no prompts: give a file with one JSON object a line",
            reason="BENCH_FILE_INVALID",
        )
    return found


def _pair(entry: Mapping[str, Any], number: int, path: Path) -> tuple[str, str]:
    turns = entry.get("turns")
    prompt = turns[0] if isinstance(turns, list) and turns else entry.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise InvalidRequestError(
            f'line {number} of {path} holds no prompt: write {{"prompt": "...", "category": '
            '"..."}, or "turns" with a list of texts',
            reason="BENCH_FILE_INVALID",
        )
    return str(entry.get("category", entry.get("cat", _PLAIN_CATEGORY))), prompt


def _completion(entry: Mapping[str, Any]) -> str:
    return f"Complete this Python function:\n```python\n{entry['prompt'].rstrip()}\n```"


def _suite_of(category: str) -> str:
    return HUMAN_EVAL if category == _HUMAN_EVAL_CATEGORY else SPEC_BENCH


def _by_category(pairs: Iterable[tuple[str, _T]]) -> dict[str, list[_T]]:
    found: dict[str, list[_T]] = {}
    for category, item in pairs:
        found.setdefault(category, []).append(item)
    return found


def _spread(by_category: Mapping[str, Sequence[_T]], wanted: int | None) -> list[_T]:
    """So many of each category, from all of its length; category by category in turns, so that a
    run that is cut off has seen all of them."""
    chosen = [_evenly(items, wanted) for items in by_category.values()]
    longest = max((len(items) for items in chosen), default=0)
    return [items[i] for i in range(longest) for items in chosen if i < len(items)]


def _evenly(items: Sequence[_T], wanted: int | None) -> Sequence[_T]:
    if wanted is None or wanted >= len(items):
        return items
    return [items[(2 * i + 1) * len(items) // (2 * wanted)] for i in range(wanted)]
