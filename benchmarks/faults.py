"""Runs all scripts that measure faults under load, and writes one JSON.

Each in a process of its own. Silence costs no time of the machine, so it goes on beside the others.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from anydraft.closing import Closing
from benchmarks._common import Findings, run_script

BESIDE = "silence"
IN_TURN = ("long_prompt", "prompt_gap", "kv_release", "cancel_opening", "hostile", "stop")

_TIMEOUT_S = 2400.0
_COMMON_FACTS = ("machine", "model", "short")


class ScriptProcess(Closing):
    """`python -m benchmarks.NAME`; a context manager that ends it, so that it ends its nodes."""

    def __init__(self, name: str, short: bool, folder: Path) -> None:
        self._output = folder / f"{name}.json"
        self._errors = folder / f"{name}.log"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", f"benchmarks.{name}", "--output", str(self._output)),
                    *(["--short"] if short else []),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def findings(self) -> Findings:
        """Waits for the script. One that fails has an "error" in the place of its findings."""
        try:
            code = self._process.wait(_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {_TIMEOUT_S:.0f} s"}
        if code:
            return {"error": last_line(self._errors.read_text(errors="replace"))}
        return own_findings(json.loads(self._output.read_text(encoding="utf-8")))

    def close(self) -> None:
        """Ends the script, and returns when it has ended its nodes."""
        self._process.terminate()
        self._process.wait()


def own_findings(report: Findings) -> Findings:
    """A script's report without what all of them say."""
    return {name: value for name, value in report.items() if name not in _COMMON_FACTS}


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it failed without a word"


def measure(short: bool) -> Findings:
    found: Findings = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        beside = stack.enter_context(ScriptProcess(BESIDE, short, folder))
        for name in IN_TURN:
            print(f"{name} …", file=sys.stderr)  # noqa: T201
            with ScriptProcess(name, short, folder) as script:
                found[name] = script.findings()
        print(f"{BESIDE} …", file=sys.stderr)  # noqa: T201
        found[BESIDE] = beside.findings()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
