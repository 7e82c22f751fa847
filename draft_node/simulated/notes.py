"""What a simulated assistant lacked, told to whoever measures it.

`{"missed":n}` is a line of a file that says that so many choices were wanted and not known,
`{"filled":n}` that they are known by now: a measurement that lacked something may be made again.
"""

from __future__ import annotations

from pathlib import Path

from draft_node.simulated.choices_file import append_lines


class Notes:
    def __init__(self, path: Path | None) -> None:
        """None: nobody wants to know."""
        self._path = path

    def missed(self, count: int) -> None:
        self._write("missed", count)

    def filled(self, count: int) -> None:
        self._write("filled", count)

    def _write(self, what: str, count: int) -> None:
        if self._path is not None:
            append_lines(self._path, [{what: count}])
