"""Three verify nodes and two draft nodes, of which one is killed (-9) every few seconds while
clients ask, greedy and sampled; then all verify nodes are restarted one after the other (SIGTERM).

Every text must be the one that a node gives which nobody disturbs. Clients ask one of the draft
nodes, with retries: what they were told is enough to go on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import anydraft
from anydraft.bench.recordings import read_recordings
from benchmarks._common import (
    MODEL,
    Findings,
    ReturningNode,
    machine_facts,
    parser,
)

_PROMPTS = Path(__file__).parent / "recordings" / "greedy.jsonl"
_NUM_PROMPTS = 6
_NEW_TOKENS = 48
_CLIENTS = 4
_RETRIES = 60
_TIMEOUT_S = 300.0
_SETTINGS: Sequence[dict[str, float | int]] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 11},
)

_Question = tuple[str, int]
"""A prompt, and which of the settings."""


class Crowd:
    """Clients that ask until they are told to stop, and compare."""

    def __init__(self, addresses: Sequence[str], truth: dict[_Question, str]) -> None:
        self._addresses = addresses
        self._truth = truth
        self._enough = threading.Event()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.answers = 0
        self.wrong: list[str] = []
        self.failed: list[str] = []
        self.resumes = 0

    def start(self) -> None:
        for number in range(_CLIENTS):
            thread = threading.Thread(target=self._ask, args=(random.Random(number),), daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Returns when what was begun has ended."""
        self._enough.set()
        for thread in self._threads:
            thread.join()

    def found(self) -> Findings:
        return {
            "answers": self.answers,
            "wrong": self.wrong,
            "failed": self.failed,
            "went_on_elsewhere": self.resumes,
        }

    def _ask(self, rng: random.Random) -> None:
        while not self._enough.is_set():
            question = rng.choice(list(self._truth))
            with anydraft.Client(rng.choice(self._addresses), timeout=_TIMEOUT_S) as client:
                try:
                    answer = ask(client, question, retries=_RETRIES)
                except anydraft.AnydraftError as error:
                    with self._lock:
                        self.failed.append(f"{error.reason}: {error}")
                    continue
            with self._lock:
                self.answers += 1
                self.resumes += answer.stats.resumes
                if answer.text != self._truth[question]:
                    self.wrong.append(answer.text)


def ask(
    client: anydraft.Client, question: _Question, *, retries: int = 0
) -> anydraft.GenerationResult:
    prompt, settings = question
    return client.generate(
        messages=[{"role": "user", "content": prompt}],
        max_new_tokens=_NEW_TOKENS,
        retries=retries,
        **_SETTINGS[settings],  # type: ignore[arg-type]
    ).result()


def under_load(crowd: Crowd, disturb: Callable[[], Findings]) -> Findings:
    crowd.start()
    started = time.monotonic()
    try:
        disturbed = disturb()
    finally:
        crowd.stop()
    return {**disturbed, **crowd.found(), "seconds": round(time.monotonic() - started, 1)}


def measure(args: argparse.Namespace) -> Findings:
    prompts = [recording.prompt for recording in read_recordings(_PROMPTS)]
    prompts = sorted(dict.fromkeys(prompts), key=len)[:_NUM_PROMPTS]
    with ExitStack() as stack:

        def returning(module: str, *flags: str) -> ReturningNode:
            return stack.enter_context(ReturningNode(module, *flags))

        target = ("--model", MODEL, "--threads", "1")
        verifiers = [returning("verify_node", *target) for _ in range(3)]
        dialled = [flag for node in verifiers for flag in ("--verify", node.address)]
        drafters = [
            returning("draft_node", "--engine", "lookup", *dialled, "--reconnect", "60")
            for _ in range(2)
        ]
        truth: dict[_Question, str] = {}
        with anydraft.Client(verifiers[0].address, timeout=_TIMEOUT_S) as client:
            for prompt in prompts:
                for settings in range(len(_SETTINGS)):
                    truth[prompt, settings] = ask(client, (prompt, settings)).text
        addresses = [node.address for node in drafters]

        def kill() -> Findings:
            rng, killed = random.Random(5), []
            end = time.monotonic() + args.seconds
            while time.monotonic() < end:
                time.sleep(args.every)
                kind = rng.choice(["verify", "draft"])
                nodes = verifiers if kind == "verify" else drafters
                rng.choice(nodes).kill_and_restart()
                killed.append(kind)
            for node in (*verifiers, *drafters):
                node.wait_ready()
            return {"killed": {kind: killed.count(kind) for kind in ("verify", "draft")}}

        def restart() -> Findings:
            return {"exit_statuses": [node.stop_and_restart() for node in verifiers]}

        return {
            "clients": _CLIENTS,
            "killed_every_s": args.every,
            "kills": under_load(Crowd(addresses, truth), kill),
            "rolling_restart": under_load(Crowd(addresses, truth), restart),
        }


def main(argv: Sequence[str] | None = None) -> int:
    p = parser(__doc__)
    p.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="between two kills")
    p.add_argument("--seconds", type=float, default=120.0, help="for which nodes are killed")
    args = p.parse_args(argv)
    if args.short:
        args.seconds = min(args.seconds, 20.0)
    report = {"machine": machine_facts(), "model": MODEL, **measure(args)}
    text = json.dumps(report, indent=2, ensure_ascii=False)
    print(text)  # noqa: T201
    if args.output is not None:
        args.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
