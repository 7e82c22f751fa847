"""What one hostile client does to another's answer.

An answer runs; beside it, one after the other, come the requests of `attacks.py`, from a process of
their own. Reported for each: the running answer's gaps and rate against the same answer alone just
before, and how the request ended. An honest second answer is among them, to compare with.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks._common import MODEL, Findings, run_script, running_node
from benchmarks._running_answer import RunningAnswer
from benchmarks.attacks import ATTACKS

ALONE_S, SHORT_ALONE_S = 5.0, 2.0
_NEW_TOKENS = 3000
_END_TIMEOUT_S = 180.0


def attacked(address: str, answer: RunningAnswer, name: str, alone_s: float) -> Findings:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.attacks", name, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as client:
        try:
            if client.stdout is None or client.stdout.readline() != "ready\n":
                return {"outcome": "the hostile client did not start"}
            alone = answer.watch(alone_s)
            started = time.monotonic()
            outcome = client.communicate("go\n", _END_TIMEOUT_S)[0].strip()
            seconds = time.monotonic() - started
            beside = answer.since(started)
        finally:
            client.kill()
    return {
        "outcome": outcome,
        "seconds": round(seconds, 2),
        "alone": alone.as_json(),
        "beside": beside.beside(alone),
    }


def measure(short: bool) -> Findings:
    alone_s = SHORT_ALONE_S if short else ALONE_S
    found: Findings = {}
    with running_node("verify_node", "--model", MODEL) as (_, address):
        for name in ATTACKS:
            # Each beside an answer of its own: how long its text is makes a difference.
            with RunningAnswer(address, _NEW_TOKENS) as answer:
                answer.wait_tokens(10, 60.0)
                found[name] = attacked(address, answer, name, alone_s)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
