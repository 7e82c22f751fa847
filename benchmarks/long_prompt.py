"""What long prompts do to an answer that is running, and what that costs the prompts.

An answer runs; beside it come one prompt of 6600 tokens, then three at once. Reported: the gaps
between the answer's tokens alone and beside them, and the time to the prompts' first tokens, also
with the node to themselves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from anydraft.rpc.channel import dial_sync
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from benchmarks._common import (
    MODEL,
    Findings,
    prompt_of,
    request,
    rounded,
    run_script,
    running_node,
)
from benchmarks._running_answer import RunningAnswer

PROMPT_TOKENS, SHORT_PROMPT_TOKENS = 6600, 2000
ALONE_S, SHORT_ALONE_S = 8.0, 4.0
_TIMEOUT_S = 900.0


def first_token_s(address: str, prompt: str) -> float:
    """Seconds from the request to the first token; the answer is cancelled then."""
    started = time.monotonic()
    with dial_sync(address) as channel:
        call = GenerationServiceStub(channel).Generate(request(prompt, 8), timeout=_TIMEOUT_S)
        for response in call:
            if response.delta.token_ids:
                break
        seconds = time.monotonic() - started
        call.cancel()
    return seconds


def first_tokens_s(address: str, prompt: str, count: int) -> list[float]:
    """The same of `count` such prompts at once, ascending."""
    with ThreadPoolExecutor(count) as pool:
        return sorted(pool.map(lambda _: first_token_s(address, prompt), range(count)))


def beside(
    address: str, answer: RunningAnswer, prompt: str, to_itself: Sequence[float], alone_s: float
) -> Findings:
    """As many prompts as `to_itself` has times, beside `answer`, after a look at it alone."""
    alone = answer.watch(alone_s)
    started = time.monotonic()
    times = first_tokens_s(address, prompt, len(to_itself))
    found = answer.since(started)
    return {
        "prompts": len(times),
        "alone": alone.as_json(),
        "beside": found.beside(alone),
        "first_token_s": rounded(times),
        "first_token_with_node_to_itself_s": rounded(to_itself),
        "cost_to_the_prompts": round(times[-1] / to_itself[-1], 2),
    }


def measure(short: bool) -> Findings:
    num_tokens = SHORT_PROMPT_TOKENS if short else PROMPT_TOKENS
    alone_s = SHORT_ALONE_S if short else ALONE_S
    prompt = prompt_of(num_tokens)
    # The prompts are the same ones, again and again.
    with running_node("verify_node", "--model", MODEL, "--no-prefix-cache") as (_, address):
        first_token_s(address, prompt_of(200))  # warms up
        to_itself = [first_tokens_s(address, prompt, count) for count in (1, 3)]
        with RunningAnswer(address) as answer:
            answer.wait_tokens(20, 60.0)
            runs = [beside(address, answer, prompt, times, alone_s) for times in to_itself]
    return {"prompt_tokens": num_tokens, "runs": runs}


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
