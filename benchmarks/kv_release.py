"""What a node still holds when all its answers have ended, with the garbage collector off.

64 answers to prompts of 1000 tokens, one after the other, on a verify node, and 24 through a draft
node (which has a cache of its own); then 30 answers at once whose readers never read past the first
message. No answer is open at the target at the end, so nothing of its KV cache should be held.
Blocks of 64 KiB and more go back to the system as soon as they are freed (malloc is told so), so
that the resident memory shows what is held.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import grpc
import psutil

from anydraft.rpc.channel import dial_sync
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from benchmarks._common import (
    KV_BYTES_PER_TOKEN,
    MODEL,
    BenchmarkNode,
    Findings,
    environment,
    prompt_of,
    request,
    run_script,
    running_node,
)

PROMPT_TOKENS, NEW_TOKENS = 980, 30
ANSWERS, SHORT_ANSWERS = 64, 6
DRAFTED_ANSWERS, SHORT_DRAFTED_ANSWERS = 24, 3
READERS, SHORT_READERS = 30, 6
WARM_UP_READERS = 4
MIN_FREE_BYTES = 4e9
"""A machine that others use as well is not filled up: the script stops asking before."""
VERIFY = ("verify_node", "--model", MODEL, "--no-prefix-cache")
"""What is kept of ended answers on purpose would hide what is not."""

_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
_TINY_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
"""A reader that lets the server send a kilobyte ahead, as any client may."""
_STALL_LOGPROBS = 20
"""Make each token's message larger, so that an answer is more than the window."""
_TIMEOUT_S = 600.0
_IDLE_SHARE = 0.1
_IDLE_CHECKS = 3


def answer_all(stub: GenerationServiceStub, count: int) -> int:
    """That many answers, one after the other, each read to its end; how many there were."""
    for done in range(count):
        if psutil.virtual_memory().available < MIN_FREE_BYTES:
            return done
        for _ in stub.Generate(request(prompt_of(PROMPT_TOKENS), NEW_TOKENS), timeout=_TIMEOUT_S):
            pass
    return count


@contextmanager
def stalled_readers(address: str, count: int) -> Iterator[None]:
    """Answers of which only the first message is read, until the block ends."""
    with ExitStack() as stack:
        for _ in range(count):
            channel = stack.enter_context(grpc.insecure_channel(address, _TINY_WINDOW))
            call = GenerationServiceStub(channel).Generate(
                request(prompt_of(PROMPT_TOKENS), NEW_TOKENS, _STALL_LOGPROBS)
            )
            stack.callback(call.cancel)
            next(call)
        yield


def wait_idle(process: psutil.Process) -> None:
    """Until the node does next to nothing: its answers have ended."""
    deadline, quiet = time.monotonic() + _TIMEOUT_S, 0
    process.cpu_percent()
    while quiet < _IDLE_CHECKS and time.monotonic() < deadline:
        time.sleep(1.0)
        quiet = quiet + 1 if process.cpu_percent() < 100 * _IDLE_SHARE else 0


def held(process: psutil.Process, before: int, answers: int) -> Findings:
    """What the process holds more than `before`, in all and for each answer."""
    wait_idle(process)
    after = process.memory_info().rss
    return {
        "answers": answers,
        "rss_before_mb": round(before / 1e6),
        "rss_after_mb": round(after / 1e6),
        "held_mb_per_answer": round((after - before) / 1e6 / max(answers, 1), 2),
    }


def measure_answers(node: BenchmarkNode, address: str, count: int) -> Findings:
    with dial_sync(address) as channel:
        stub = GenerationServiceStub(channel)
        answer_all(stub, 2)  # warms up: whatever is allocated once is no answer's
        wait_idle(node.process)
        before = node.process.memory_info().rss
        return held(node.process, before, answer_all(stub, count))


def measure_stalled(node: BenchmarkNode, address: str, count: int) -> Findings:
    with stalled_readers(address, WARM_UP_READERS):
        wait_idle(node.process)
    before = node.process.memory_info().rss
    with stalled_readers(address, count):
        found = held(node.process, before, count)
    wait_idle(node.process)
    return found | {"rss_after_they_left_mb": round(node.process.memory_info().rss / 1e6)}


def measure(short: bool) -> Findings:
    answers, readers = (SHORT_ANSWERS, SHORT_READERS) if short else (ANSWERS, READERS)
    drafted = SHORT_DRAFTED_ANSWERS if short else DRAFTED_ANSWERS
    wrapper = "benchmarks.without_collector"
    with environment(_MALLOC):
        with running_node(wrapper, *VERIFY) as (verify, address):
            on_verify = measure_answers(verify, address, answers)
        with running_node(wrapper, *VERIFY) as (verify, address):
            stalled = measure_stalled(verify, address, readers)
            with running_node(wrapper, "draft_node", "--model", MODEL, "--verify", address) as (
                draft,
                draft_address,
            ):
                on_draft = measure_answers(draft, draft_address, drafted)
    kv_bytes = KV_BYTES_PER_TOKEN * (PROMPT_TOKENS + NEW_TOKENS)
    return {
        "kv_mb_of_one_answer": round(kv_bytes / 1e6, 1),
        "verify_node": on_verify,
        "verify_node_readers_that_never_read": stalled,
        "draft_node": on_draft,
    }


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
