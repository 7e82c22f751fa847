"""A verify node that has a pool of two drafters beside it draft, asked by a client that knows
nothing of them; the target and the assistant are simulated, at a round trip of 0 ms.

Beside it the same target alone, and the same assistant as a draft node in front of it. Then the
pool again, while of its drafters the one that has something to do is killed (-9) every few seconds
and started anew: every answer must be the one that was recorded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from itertools import cycle
from pathlib import Path

import grpc

from anydraft.bench.arms import ASSISTED, TARGET_ONLY, Answer, NodeArm
from anydraft.bench.memory import Memory
from anydraft.bench.recordings import read_recordings
from anydraft.bench.runs import run_one_by_one
from anydraft.bench.sources import SPEC_BENCH
from anydraft.bench.tasks import Task, tasks_of_recordings
from anydraft.rpc.channel import dial_sync
from anydraft.v1.server_pb2 import GetServerInfoRequest
from anydraft.v1.server_pb2_grpc import ServerServiceStub
from benchmarks._common import (
    READY_TIMEOUT_S,
    BenchmarkNode,
    Findings,
    ReturningNode,
    machine_facts,
    parser,
)

TARGET, ASSISTANT = "qwen2.5-coder-1.5b-instruct", "smollm2-135m-instruct"
ANSWERS = Path(__file__).parent / "recordings" / "greedy.jsonl"
STEP_MS, PIECE_MS = 30.0, 8.0
POOL, KILLED = "pool", "pool_while_drafters_are_killed"
_MAX_NEW_TOKENS = 96
_KILL_ROUNDS = 2
"""How often everything is asked while drafters are killed."""


class Drafter(ReturningNode):
    """That tells whether it drafts for anybody."""

    def __init__(self, *args: str) -> None:
        super().__init__("draft_node.simulated", *args)

    def is_busy(self) -> bool:
        with dial_sync(self.address) as channel:
            ask = ServerServiceStub(channel).GetServerInfo
            try:
                info = ask(GetServerInfoRequest(), timeout=1.0).info
            except grpc.RpcError:
                return False
        return bool(info.num_drafting_sessions)


async def kill_the_busy(drafters: Sequence[Drafter], every_s: float, killed: list[float]) -> None:
    """Until cancelled."""
    began_at = time.monotonic()
    while True:
        await asyncio.sleep(every_s)
        killed_one = False
        while not killed_one:
            await asyncio.sleep(0.05)
            killed_one = await asyncio.to_thread(_kill_one, drafters)
        killed.append(round(time.monotonic() - began_at, 1))


def _kill_one(drafters: Sequence[Drafter]) -> bool:
    for drafter in drafters:
        if drafter.is_busy():
            drafter.kill_and_restart()
            return True
    return False


def rate(answers: Sequence[Answer]) -> float:
    """Tokens a second, from question to end."""
    tokens = sum(count for answer in answers for _, count in answer.arrivals)
    return tokens / sum(answer.total_s for answer in answers)


def described(tasks: Sequence[Task], answers: Sequence[Answer], alone: float) -> Findings:
    stats = [answer.stats for answer in answers if answer.stats is not None]
    return {
        "answers": len(answers),
        "tokens_per_s": round(rate(answers), 2),
        "over_target_only": round(rate(answers) / alone, 3),
        "drafted_tokens": sum(s.drafted for s in stats),
        "accepted_tokens": sum(s.accepted for s in stats),
        "as_recorded": sum(
            answer.ids == task.expected for task, answer in zip(cycle(tasks), answers)
        ),
    }


async def measure(args: argparse.Namespace) -> Findings:
    tasks = tasks_of_recordings(
        read_recordings(ANSWERS), SPEC_BENCH, 4 if args.short else None, _MAX_NEW_TOKENS
    )
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        choices, notes = args.choices or folder / "choices", folder / "notes"
        verify = ["--model", TARGET, "--answers", str(ANSWERS), "--step-ms", str(STEP_MS)]
        draft = ["--model", ASSISTANT, "--piece-ms", str(PIECE_MS), "--choices", str(choices)]
        draft += ["--notes", str(notes), "--no-memory", "--threads", "1", "--same-machine", "no"]
        drafters = [stack.enter_context(Drafter(*draft)) for _ in range(2)]

        def node(module: str, arguments: Sequence[str]) -> str:
            node = BenchmarkNode(module, [*arguments, "--listen", "127.0.0.1:0"])
            return stack.enter_context(node).wait_ready(READY_TIMEOUT_S)

        alone = node("verify_node.simulated", verify)
        pool = [flag for drafter in drafters for flag in ("--drafters", drafter.address)]
        pooled = node("verify_node.simulated", [*verify, *pool, "--same-machine", "no"])
        fronted = node("draft_node.simulated", [*draft, "--verify", alone])
        lack = Memory(notes)
        arms = [
            NodeArm(name, [address])
            for name, address in ((TARGET_ONLY, alone), (ASSISTED, fronted), (POOL, pooled))
        ]
        for arm in arms:
            stack.push_async_callback(arm.close)
            await arm.ask(Task("", "Hello", 4))
        await lack.filled()
        run = await run_one_by_one(tasks, arms, lack=lack)
        found = {
            arm.name: [outcome.answers[arm.name][0] for outcome in run.outcomes] for arm in arms
        }
        killed: list[float] = []
        killing = asyncio.create_task(kill_the_busy(drafters, args.every, killed))
        try:
            found[KILLED] = [await arms[-1].ask(task) for task in tasks * _KILL_ROUNDS]
        finally:
            killing.cancel()
            with suppress(asyncio.CancelledError):
                await killing
    only = rate(found[TARGET_ONLY])
    return {
        "step_ms": STEP_MS,
        "piece_ms": PIECE_MS,
        "round_trip_ms": 0,
        "incomplete": run.incomplete,
        **{name: described(tasks, answers, only) for name, answers in found.items()},
        "killed_at_s": killed,
        "killed_every_s": args.every,
    }


def main(argv: Sequence[str] | None = None) -> int:
    p = parser(__doc__)
    p.add_argument("--every", type=float, default=3.0, metavar="SECONDS", help="between two kills")
    p.add_argument("--choices", type=Path, metavar="FILE", help="the assistant's memory; grows")
    args = p.parse_args(argv)
    report = {"machine": machine_facts(), "target": TARGET, "assistant": ASSISTANT}
    text = json.dumps(report | asyncio.run(measure(args)), indent=2)
    print(text)  # noqa: T201
    if args.output is not None:
        args.output.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
