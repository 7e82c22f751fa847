"""What a long prompt does to eight answers that are running, and they to it.

Eight answers run; a prompt of 4,000 tokens comes. Reported: the 99th percentile of the gaps between
tokens of each answer, all of them together, alone and beside the prompt; the time to the prompt's
first token beside them and with the node to itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from benchmarks._common import MODEL, Findings, prompt_of, run_script, running_node
from benchmarks._running_answer import RunningAnswer
from benchmarks.long_prompt import first_token_s

ANSWERS = 8
PROMPT_TOKENS, SHORT_PROMPT_TOKENS = 4000, 1200
ALONE_S, SHORT_ALONE_S = 10.0, 4.0
_WARM_UP_TOKENS = 20
_TIMEOUT_S = 120.0


def percentile_ms(gaps: Sequence[float], share: float) -> float:
    """Milliseconds that so many of the gaps do not exceed."""
    if not gaps:
        raise ValueError("no gaps to judge")
    return sorted(gaps)[min(int(share * len(gaps)), len(gaps) - 1)] * 1e3


def gaps_of(answers: Sequence[RunningAnswer], started: float, ended: float) -> list[float]:
    return [gap for answer in answers for gap in answer.gaps(started, ended)]


def summary(gaps: Sequence[float]) -> Findings:
    names = {"median_ms": 0.5, "p99_ms": 0.99, "longest_ms": 1.0}
    return {name: round(percentile_ms(gaps, share), 1) for name, share in names.items()}


def measure(short: bool) -> Findings:
    prompt = prompt_of(SHORT_PROMPT_TOKENS if short else PROMPT_TOKENS)
    alone_s = SHORT_ALONE_S if short else ALONE_S
    with ExitStack() as stack:
        _, address = stack.enter_context(
            running_node("verify_node", "--model", MODEL, "--no-prefix-cache")
        )
        first_token_s(address, prompt_of(200))  # warms up
        to_itself = first_token_s(address, prompt)
        answers = [stack.enter_context(RunningAnswer(address)) for _ in range(ANSWERS)]
        for answer in answers:
            answer.wait_tokens(_WARM_UP_TOKENS, _TIMEOUT_S)
        started = time.monotonic()
        time.sleep(alone_s)
        arrived = time.monotonic()
        beside = first_token_s(address, prompt)
        ended = time.monotonic()
        answers[0].wait_tokens(2, _TIMEOUT_S)
        alone, crowded = gaps_of(answers, started, arrived), gaps_of(answers, arrived, ended)
    p99 = percentile_ms(crowded, 0.99) / percentile_ms(alone, 0.99)
    return {
        "prompt_tokens": SHORT_PROMPT_TOKENS if short else PROMPT_TOKENS,
        "alone": summary(alone),
        "beside": summary(crowded),
        "p99_over_alone": round(p99, 2),
        "first_token_s": round(beside, 2),
        "first_token_with_node_to_itself_s": round(to_itself, 2),
        "cost_to_the_prompt": round(beside / to_itself, 2),
    }


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
