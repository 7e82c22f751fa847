"""Does an answer that is cancelled while it is being opened leave something behind?

200 opens, ten at a time, by Generate and by Verify, on an idle node and beside a running answer,
each cancelled at a random moment within 300 ms, most of them early. After each ten, as many answers
as the node has places are asked for until all of them are let in: an orphan keeps one of them out.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc

from anydraft.rpc.channel import dial_sync
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.verification_pb2 import Open, VerifyRequest
from anydraft.v1.verification_pb2_grpc import VerificationServiceStub
from anydraft.version import PROTOCOL_REVISION
from benchmarks._common import MODEL, Findings, request, run_script, running_node, spec
from benchmarks._running_answer import RunningAnswer

AT_ONCE = 10
ROUNDS, SHORT_ROUNDS = 5, 1
"""For each way of opening, and for an idle and a busy node."""
LATEST_S = 0.3
ORPHAN_S = 3.0
"""Longer than the step that may be running when a session is closed: who is kept out for longer is
kept out by a session that nobody closed."""

_PROMPT = " " * 40_000
"""Ten milliseconds of encoding, 600 tokens."""
_NEW_TOKENS = 150
_RUNNING_TOKENS = 600
PLACES = AT_ONCE + 1
_SETTLE_S = 0.2
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Round:
    """What was found after ten cancels."""

    waited_s: float
    """Until nobody was refused a place; 0 when that was so at once."""
    held_places: int
    """When they were first asked for."""


def summarize(rounds: Sequence[Round]) -> Findings:
    return {
        "cancels": AT_ONCE * len(rounds),
        "rounds": len(rounds),
        "rounds_kept_out": sum(found.waited_s > 0 for found in rounds),
        "rounds_with_orphans": sum(found.waited_s > ORPHAN_S for found in rounds),
        "longest_wait_s": round(max(found.waited_s for found in rounds), 2),
        "most_places_held": max(found.held_places for found in rounds),
    }


def open_and_cancel(channel: grpc.Channel, verify: bool, after_s: float) -> None:
    if verify:
        opening = Open(protocol_revision=PROTOCOL_REVISION, spec=spec(_PROMPT, _NEW_TOKENS))
        requests = iter([VerifyRequest(open=opening)])
        call: grpc.Call = VerificationServiceStub(channel).Verify(requests)
    else:
        call = GenerationServiceStub(channel).Generate(request(_PROMPT, _NEW_TOKENS))
    time.sleep(after_s)
    call.cancel()


def num_refused(stub: GenerationServiceStub, places: int) -> int:
    """How many of so many answers at once get no place."""
    calls = [
        stub.Generate(request("Hello", _NEW_TOKENS), timeout=_TIMEOUT_S) for _ in range(places)
    ]
    refused = 0
    try:
        for call in calls:
            try:
                next(call)
            except grpc.RpcError:
                if call.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                refused += 1
    finally:
        for call in calls:
            call.cancel()
    return refused


def wait_for_room(channel: grpc.Channel, places: int) -> Round:
    stub = GenerationServiceStub(channel)
    started = time.monotonic()
    if not (first := num_refused(stub, places)):
        return Round(0.0, 0)
    while True:
        time.sleep(_SETTLE_S)
        asked = time.monotonic()
        if not num_refused(stub, places):
            return Round(asked - started, first)


def cancel_ten(address: str, verify: bool, places: int) -> Round:
    with dial_sync(address) as channel, ThreadPoolExecutor(AT_ONCE) as pool:
        grpc.channel_ready_future(channel).result(_TIMEOUT_S)
        moments = [LATEST_S * random.random() ** 3 for _ in range(AT_ONCE)]
        list(pool.map(lambda after_s: open_and_cancel(channel, verify, after_s), moments))
        time.sleep(_SETTLE_S)
        found = wait_for_room(channel, places)
        time.sleep(_SETTLE_S)
    return found


def cancel_ten_beside(address: str, verify: bool) -> Round:
    """The same beside a running answer."""
    with RunningAnswer(address, _RUNNING_TOKENS) as answer:
        answer.wait_tokens(3, _TIMEOUT_S)
        return cancel_ten(address, verify, PLACES - 1)


def measure(short: bool) -> Findings:
    random.seed(20)
    count = range(SHORT_ROUNDS if short else ROUNDS)
    found: Findings = {}
    flags = ("--max-sessions", str(PLACES), "--max-waiting", "0", "--no-prefix-cache")
    with running_node("verify_node", "--model", MODEL, *flags) as (_, address):
        for name, verify in (("generate", False), ("verify", True)):
            idle = [cancel_ten(address, verify, PLACES) for _ in count]
            busy = [cancel_ten_beside(address, verify) for _ in count]
            found |= {f"{name}_idle": summarize(idle), f"{name}_busy": summarize(busy)}
    return found


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
