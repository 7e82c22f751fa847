"""Many clients on a node with memory for few, some of which leave: is every text the right one?

Each client asks one of 12 questions, again and again, greedy or with a seed; half of them begin
alike. Some cancel in the middle, hang up, or give the answer too little time. What was said until
then must be the beginning of what the node says with nobody beside it, or all of that. Memory is
looked at meanwhile: it must stay within the budget and what the node takes besides.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import psutil

from anydraft.flags import seconds
from anydraft.rpc.channel import dial_sync
from anydraft.v1.generation_pb2 import GenerateRequest
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.prompt_pb2 import GenerationSpec, Prompt, SamplingParams, StopConditions
from benchmarks._common import (
    KV_BYTES_PER_TOKEN,
    MODEL,
    Findings,
    describe_error,
    parser,
    run,
    running_node,
)

SECONDS, SHORT_SECONDS = 600.0, 60.0
CLIENTS, QUESTIONS = 64, 12
_KV_TOKENS = 16 * 150
"""For 16 of the clients."""
_NEW_TOKENS = 80
_ENDS = ("whole", "whole", "whole", "cancel", "hang up", "deadline")
_SOME_TOKENS = 60
_DEADLINE_S = 3.0
_TIMEOUT_S = 600.0
_LOOK_S = 0.2
_COMMON = "You are a careful assistant that answers every question in full sentences. " * 4
_WRONG_SHOWN = 5


@dataclass(frozen=True)
class Question:
    spec: GenerationSpec
    truth: tuple[int, ...]
    """What the node says to it alone."""


@dataclass
class Tally:
    """What came of it all; shared by the clients' threads."""

    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    cached_tokens: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, how: str, wrong: str | None = None, cached_tokens: int = 0) -> None:
        with self._lock:
            self.ended[how] += 1
            self.cached_tokens += cached_tokens
            if wrong is not None:
                self.wrong.append(wrong)

    def as_json(self) -> Findings:
        return {
            "answers": sum(self.ended.values()),
            "ended": dict(sorted(self.ended.items())),
            "wrong": len(self.wrong),
            "first_wrong": self.wrong[:_WRONG_SHOWN],
            "cached_tokens": self.cached_tokens,
        }


def specs(count: int, new_tokens: int, rng: random.Random) -> list[GenerationSpec]:
    """A half of them begin alike, a third are sampled, their lengths differ."""
    made: list[GenerationSpec] = []
    for index in range(count):
        words = " ".join(str(rng.randrange(1000)) for _ in range(rng.randrange(3, 30)))
        text = (_COMMON if index % 2 else "") + f"Question {index}: {words}?"
        sampling = (
            SamplingParams(temperature=0.8, top_p=0.95, seed=index)
            if index % 3 == 0
            else SamplingParams(temperature=0)
        )
        stop = StopConditions(
            max_new_tokens=rng.randrange(new_tokens // 4, new_tokens), ignore_eos=True
        )
        made.append(GenerationSpec(prompt=Prompt(text=text), sampling=sampling, stop=stop))
    return made


def ask_alone(address: str, asked: Sequence[GenerationSpec]) -> list[Question]:
    """One after the other."""
    found: list[Question] = []
    with dial_sync(address) as channel:
        for spec in asked:
            ids: list[int] = []
            request = GenerateRequest(spec=spec)
            for response in GenerationServiceStub(channel).Generate(request, timeout=_TIMEOUT_S):
                ids += response.delta.token_ids
            found.append(Question(spec, tuple(ids)))
    return found


def ask(address: str, question: Question, rng: random.Random, tally: Tally) -> None:
    """Once, in one of the ways that answers end."""
    how = rng.choice(_ENDS)
    leave_after = rng.randrange(min(_SOME_TOKENS, len(question.truth)))
    timeout = rng.random() * _DEADLINE_S if how == "deadline" else _TIMEOUT_S
    ids: list[int] = []
    cached_tokens = 0
    ended = False
    with dial_sync(address) as channel:
        request = GenerateRequest(spec=question.spec)
        call = GenerationServiceStub(channel).Generate(request, timeout=timeout)
        try:
            for response in call:
                ids += response.delta.token_ids
                ended = response.HasField("finished")
                cached_tokens = response.finished.stats.cached_tokens
                if how in ("cancel", "hang up") and len(ids) > leave_after:
                    break
            if how == "cancel":
                call.cancel()
        except grpc.RpcError as error:
            expected = (how == "deadline", grpc.StatusCode.DEADLINE_EXCEEDED)
            if (True, call.code()) != expected:
                full = call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                wrong = None if full else f"{how}: {describe_error(error)}"
                tally.count("refused" if full else "failed", wrong)
                return
    wrong = None
    if tuple(ids) != question.truth[: len(ids)] or (ended and len(ids) < len(question.truth)):
        wrong = f"{how}: {ids} is not {list(question.truth)}"
    elif how == "whole" and not ended:
        wrong = "whole: it ended without a word"
    tally.count("whole" if ended else how, wrong, cached_tokens)


def soak(
    address: str, questions: Sequence[Question], *, clients: int, seed: int, until: float, most: int
) -> Tally:
    """Asks until then (of `time.monotonic`), or until each client has asked `most` times."""
    tally = Tally()

    def client(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        for _ in range(most):
            if time.monotonic() > until:
                return
            ask(address, rng.choice(questions), rng, tally)

    with ThreadPoolExecutor(clients) as pool:
        for done in [pool.submit(client, number) for number in range(clients)]:
            done.result()
    return tally


class MemoryWatch:
    """The most that a process held while the block ran."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most_bytes = 0

    def _look(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.most_bytes = max(self.most_bytes, self._process.memory_info().rss)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def measure(for_s: float) -> Findings:
    rng = random.Random(24)
    with running_node("verify_node", "--model", MODEL, "--kv-tokens", str(_KV_TOKENS)) as (
        node,
        address,
    ):
        before = node.process.memory_info().rss
        questions = ask_alone(address, specs(QUESTIONS, _NEW_TOKENS, rng))
        started = time.monotonic()
        with MemoryWatch(node.process) as watch:
            tally = soak(
                address,
                questions,
                clients=CLIENTS,
                seed=1,
                until=started + for_s,
                most=sys.maxsize,
            )
        # Nothing is left of those that went: each answers as if it were alone.
        again = ask_alone(address, [question.spec for question in questions])
    mb = 1e6
    return {
        "seconds": round(time.monotonic() - started),
        "clients": CLIENTS,
        **tally.as_json(),
        "wrong_afterwards": sum(a != b for a, b in zip(questions, again, strict=True)),
        "kv_budget_mb": round(_KV_TOKENS * KV_BYTES_PER_TOKEN / mb),
        "most_memory_over_start_mb": round((watch.most_bytes - before) / mb),
    }


def main(argv: Sequence[str] | None = None) -> int:
    p = parser(__doc__)
    p.add_argument(
        "--seconds",
        type=seconds(above=True),
        metavar="SECONDS",
        help=f"how long (default: {SECONDS:g}, with --short {SHORT_SECONDS:g})",
    )
    args = p.parse_args(argv)

    def for_as_long(short: bool) -> Findings:
        return measure(args.seconds or (SHORT_SECONDS if short else SECONDS))

    return run(args, for_as_long)


if __name__ == "__main__":
    sys.exit(main())
