"""A chat of ten turns: how long until the first token of each, with and without prefixes.

Two verify nodes, one that keeps what ended answers have computed and one that does not, are asked
the same turns one after the other; each turn's prompt has all that was said before it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from anydraft.rpc.channel import dial_sync
from anydraft.v1.generation_pb2 import GenerateRequest
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.prompt_pb2 import (
    ChatMessage,
    ChatMessages,
    GenerationSpec,
    Prompt,
    SamplingParams,
    StopConditions,
)
from benchmarks._common import MODEL, Findings, run_script, running_node

TURNS, SHORT_TURNS = 10, 4
ANSWER_TOKENS = 40
_QUESTION_WORDS = 120
_TIMEOUT_S = 300.0


def question(turn: int) -> str:
    return f"Turn {turn}. " + " ".join(f"word{turn}{n % 10}" for n in range(_QUESTION_WORDS))


def ask(stub: GenerationServiceStub, messages: Sequence[ChatMessage]) -> tuple[Findings, str, str]:
    """One turn: its figures, its text, and its ids, as text, to be compared."""
    spec = GenerationSpec(
        prompt=Prompt(messages=ChatMessages(messages=messages)),
        sampling=SamplingParams(temperature=0),
        stop=StopConditions(max_new_tokens=ANSWER_TOKENS),
    )
    started, first_s = time.monotonic(), 0.0
    text, ids = "", []
    found: Findings = {}
    for response in stub.Generate(GenerateRequest(spec=spec), timeout=_TIMEOUT_S):
        if response.delta.token_ids:
            first_s = first_s or time.monotonic() - started
            text += response.delta.text
            ids += response.delta.token_ids
        if response.HasField("finished"):
            stats = response.finished.stats
            found = {
                "prompt_tokens": stats.prompt_tokens,
                "cached_tokens": stats.cached_tokens,
                "first_token_ms": round(first_s * 1e3),
            }
    return found, text, str(ids)


def chat(turns: int, *flags: str) -> tuple[list[Findings], list[str]]:
    figures: list[Findings] = []
    answers: list[str] = []
    with (
        running_node("verify_node", "--model", MODEL, *flags) as (_, address),
        dial_sync(address) as channel,
    ):
        stub = GenerationServiceStub(channel)
        ask(stub, [ChatMessage(role="user", content="Hello")])  # warms up
        messages: list[ChatMessage] = []
        for turn in range(turns):
            messages.append(ChatMessage(role="user", content=question(turn)))
            found, text, ids = ask(stub, messages)
            messages.append(ChatMessage(role="assistant", content=text))
            figures.append(found)
            answers.append(ids)
    return figures, answers


def measure(short: bool) -> Findings:
    turns = SHORT_TURNS if short else TURNS
    kept, answers = chat(turns)
    computed, as_computed = chat(turns, "--no-prefix-cache")
    return {
        "turns": turns,
        "with_prefixes": kept,
        "without": computed,
        "ids_equal": answers == as_computed,
    }


def main(argv: Sequence[str] | None = None) -> int:
    return run_script(__doc__, measure, argv)


if __name__ == "__main__":
    sys.exit(main())
