"""Does an answer that is cancelled while it is being opened leave something behind?

200 opens, ten at a time, by Generate and by Verify, on an idle node and beside a running answer,
each cancelled at a random moment within 300 ms, most of them early. After each ten, an answer that
needs the whole KV budget is asked for until it is let in: what an orphan holds keeps it out.
"""

from __future__ import annotations

import random
import re
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
_KV_TOKENS = 8000
_SLACK_TOKENS = 100
"""Of the budget that nobody asks for; less than what an orphan holds."""
_SETTLE_S = 0.2
_TIMEOUT_S = 120.0
_HELD = re.compile(r"(\d+) sessions hold (\d+)")


@dataclass(frozen=True)
class Round:
    """What was found after ten cancels."""

    waited_s: float
    """Until an answer that needs the whole budget was let in; 0 when it was at once."""
    held_tokens: int
    """As the first refusal says; 0 without one."""


def summarize(rounds: Sequence[Round]) -> Findings:
    return {
        "cancels": AT_ONCE * len(rounds),
        "rounds": len(rounds),
        "rounds_kept_out": sum(found.waited_s > 0 for found in rounds),
        "rounds_with_orphans": sum(found.waited_s > ORPHAN_S for found in rounds),
        "longest_wait_s": round(max(found.waited_s for found in rounds), 2),
        "most_tokens_held": max(found.held_tokens for found in rounds),
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


def refusal(stub: GenerationServiceStub, tokens: int) -> str | None:
    """Why there is no room for an answer of `tokens`; None when there is."""
    call = stub.Generate(request("Hello", tokens), timeout=_TIMEOUT_S)
    try:
        next(call)
    except grpc.RpcError:
        if call.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        return call.details() or "no room"
    call.cancel()
    return None


def wait_for_room(channel: grpc.Channel, tokens: int) -> Round:
    stub = GenerationServiceStub(channel)
    started = time.monotonic()
    if (first := refusal(stub, tokens)) is None:
        return Round(0.0, 0)
    while refusal(stub, tokens) is not None:
        time.sleep(_SETTLE_S)
    held = _HELD.search(first)
    return Round(time.monotonic() - started, int(held.group(2)) if held else 0)


def cancel_ten(address: str, verify: bool, running_tokens: int) -> Round:
    with dial_sync(address) as channel, ThreadPoolExecutor(AT_ONCE) as pool:
        grpc.channel_ready_future(channel).result(_TIMEOUT_S)
        moments = [LATEST_S * random.random() ** 3 for _ in range(AT_ONCE)]
        list(pool.map(lambda after_s: open_and_cancel(channel, verify, after_s), moments))
        time.sleep(_SETTLE_S)
        found = wait_for_room(channel, _KV_TOKENS - running_tokens - _SLACK_TOKENS)
        time.sleep(_SETTLE_S)
    return found


def cancel_ten_beside(address: str, verify: bool) -> Round:
    """The same beside a running answer."""
    with RunningAnswer(address, _RUNNING_TOKENS) as answer:
        answer.wait_tokens(3, _TIMEOUT_S)
        return cancel_ten(address, verify, _RUNNING_TOKENS)


def measure(short: bool) -> Findings:
    random.seed(20)
    count = range(SHORT_ROUNDS if short else ROUNDS)
    found: Findings = {}
    with running_node("verify_node", "--model", MODEL, "--kv-tokens", str(_KV_TOKENS)) as (
        _,
        address,
    ):
        for name, verify in (("generate", False), ("verify", True)):
            idle = [cancel_ten(address, verify, 0) for _ in count]
            busy = [cancel_ten_beside(address, verify) for _ in count]
            found |= {f"{name}_idle": summarize(idle), f"{name}_busy": summarize(busy)}
    return found


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
