"""What an assistant chose, kept in a file from run to run.

The first line says which assistant it is; every other is what follows one sequence of ids, under a
digest of them. Lines are only ever added, so that several processes may share the file.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from anydraft.errors import FailedPreconditionError
from draft_node.engines.base import Choices
from draft_node.simulated.facts import EngineFacts

_DIGEST_BYTES = 12
_DIGITS = 5


def key_of(*parts: Iterable[int]) -> str:
    """Of the ids of all parts, one behind the other."""
    ids = array("i", (token_id for part in parts for token_id in part))
    return hashlib.blake2b(ids.tobytes(), digest_size=_DIGEST_BYTES).hexdigest()


def append_lines(path: Path, entries: Sequence[Mapping[str, Any]]) -> None:
    """In one write, which no other process's falls into."""
    text = "".join(f"{json.dumps(entry, separators=(',', ':'))}\n" for entry in entries)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


class ChoicesFile:
    """Not thread-safe: the drafting thread's alone."""

    def __init__(self, path: Path) -> None:
        """Reads what there is. Raises FailedPreconditionError where it cannot be used."""
        self._path = path
        self._found: dict[str, Choices] = {}
        self._read_bytes = 0
        self.facts: EngineFacts | None = None
        """Of the assistant; None in a file that is yet empty."""
        self.catch_up()

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: str) -> Choices | None:
        return self._found.get(key)

    def begin(self, facts: EngineFacts) -> None:
        """For a file that was empty."""
        self.facts = facts
        self._append([facts.as_json()])

    def add(self, keys: Sequence[str], choices: Sequence[Choices]) -> None:
        entries = []
        for key, chosen in zip(keys, choices, strict=True):
            logprobs = tuple(round(logprob, _DIGITS) for logprob in chosen.logprobs)
            self._found[key] = Choices(chosen.token_ids, logprobs)
            entries.append({"k": key, "i": chosen.token_ids, "p": logprobs})
        self._append(entries)

    def catch_up(self) -> None:
        """Reads what was added by others meanwhile."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._unusable(str(error)) from None
        # Without its end, a line is still being written, or its writer was killed.
        lines = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(lines)
        for line in lines.splitlines():
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            if self.facts is None:
                self.facts = EngineFacts.from_json(entry)
            elif "k" in entry:
                self._found[entry["k"]] = _choices(entry)
        except (KeyError, TypeError, ValueError):
            if self.facts is None:
                raise self._unusable("its first line is not that of such a file") from None
            # A line that was cut off, with the next one behind it: both are chosen again.

    def _append(self, entries: Sequence[Mapping[str, Any]]) -> None:
        try:
            append_lines(self._path, entries)
        except OSError as error:
            raise self._unusable(str(error)) from None

    def _unusable(self, problem: str) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"{self._path} cannot hold an assistant's choices ({problem}): delete it, or name "
            "another file with --choices",
            reason="BENCH_FILE_INVALID",
        )


def _choices(entry: Mapping[str, Any]) -> Choices:
    return Choices(tuple(map(int, entry["i"])), tuple(map(float, entry["p"])))
