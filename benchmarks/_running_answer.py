"""One client reading its answer while others do something: when each of its tokens came."""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import grpc

from anydraft.closing import Closing
from anydraft.errors import InternalError
from anydraft.rpc.channel import dial_sync
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from benchmarks._common import Findings, describe_error, prompt_of, request

MAX_NEW_TOKENS = 8000
_POLL_S = 0.02


@dataclass(frozen=True)
class GapSummary:
    """Times between tokens, as the client sees them."""

    tokens: int
    """That came within the window."""
    rate: float
    """Tokens per second of the window."""
    usual_ms: float
    """The median gap."""
    longest_ms: float

    def as_json(self) -> Findings:
        return {name: _rounded(value) for name, value in asdict(self).items()}

    def beside(self, alone: GapSummary) -> Findings:
        """This window as JSON, with what it was against the same answer alone."""
        return self.as_json() | {
            "longest_over_usual_alone": round(self.longest_ms / alone.usual_ms, 1),
            "rate_over_alone": round(self.rate / alone.rate, 3),
        }


def _rounded(value: float) -> float:
    return value if isinstance(value, int) else round(value, 2)


def gaps_between(arrivals: Sequence[float], start: float, end: float) -> list[float]:
    """Seconds between arrivals, of the gaps that overlap the window."""
    pairs = itertools.pairwise(arrivals)
    return [later - earlier for earlier, later in pairs if later > start and earlier < end]


def summarize(arrivals: Sequence[float], start: float, end: float) -> GapSummary:
    """Of the arrivals (in seconds, ascending), the gaps that overlap the window from `start` to
    `end`. ValueError when no gap does."""
    gaps = gaps_between(arrivals, start, end)
    tokens = sum(start <= arrival < end for arrival in arrivals)
    if not gaps:
        raise ValueError(f"no two tokens came around the window of {end - start:.1f} s")
    return GapSummary(
        tokens=tokens,
        rate=tokens / (end - start),
        usual_ms=statistics.median(gaps) * 1e3,
        longest_ms=max(gaps) * 1e3,
    )


class RunningAnswer(Closing):
    """Reads an answer of up to MAX_NEW_TOKENS on a thread; a context manager that cancels it."""

    def __init__(self, address: str, max_new_tokens: int = MAX_NEW_TOKENS) -> None:
        self._channel = dial_sync(address)
        self._call = GenerationServiceStub(self._channel).Generate(
            request(prompt_of(20), max_new_tokens)
        )
        self._arrivals: list[float] = []
        self._ended: str | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for response in self._call:
                now = time.monotonic()
                # Tokens of one step come together: a client sees no gap between them.
                self._arrivals.extend([now] * len(response.delta.token_ids))
            self._ended = "it was finished"
        except grpc.RpcError as error:
            self._ended = describe_error(error)

    @property
    def num_tokens(self) -> int:
        return len(self._arrivals)

    def wait_tokens(self, count: int, timeout_s: float) -> None:
        """Until `count` more have come. InternalError when they do not."""
        goal, deadline = self.num_tokens + count, time.monotonic() + timeout_s
        while self.num_tokens < goal:
            if self._ended is not None or time.monotonic() > deadline:
                raise InternalError(
                    f"the running answer stands still ({self._ended or 'no token came in time'}). "
                    "Run the script again on an idle machine.",
                    reason="ANSWER_STANDS_STILL",
                )
            time.sleep(_POLL_S)

    def watch(self, seconds: float) -> GapSummary:
        """The gaps of the next `seconds`."""
        started = time.monotonic()
        time.sleep(seconds)
        return self.since(started)

    def since(self, started: float, token_timeout_s: float = 120.0) -> GapSummary:
        """The gaps from `started` (of `time.monotonic`) up to now, the one that is open included,
        so that this waits for its end."""
        now = time.monotonic()
        self.wait_tokens(1, token_timeout_s)
        return summarize(list(self._arrivals), started, now)

    def gaps(self, started: float, ended: float) -> list[float]:
        """Seconds between the tokens that came in that time (of `time.monotonic`)."""
        return gaps_between(list(self._arrivals), started, ended)

    def close(self) -> None:
        """Cancels the call; returns when nothing is read any more."""
        self._call.cancel()
        self._thread.join()
        self._channel.close()
