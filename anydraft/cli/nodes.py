"""Nodes as processes, for the demo, benchmarks and tests: always ended with their user."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from anydraft.closing import Closing
from anydraft.errors import UnavailableError

_READY = re.compile(r"ready on (\S+)")
_LOG_PREFIX = re.compile(r"^\S+ [A-Z]+ [\w.]+: ")
_TAIL_LINES = 30
_STOP_S = 15.0


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """SIGTERM, and the end of the terminal, leave through `with` blocks, which end their nodes; by
    themselves they would end this process alone. Main thread only."""

    def leave(number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class NodeProcess(Closing):
    """`python -m MODULE ARGS`, with its log read in the background. A context manager."""

    def __init__(
        self, module: str, args: Sequence[str], *, cores: Collection[int] | None = None
    ) -> None:
        """`cores`: the only ones that it may use (Linux); None leaves it those of this process."""
        self.module = module
        self._log: deque[str] = deque(maxlen=_TAIL_LINES)
        self._ready = threading.Event()
        self._address = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        if cores is not None:
            # It has not come to its threads yet, which will be kept to the same cores.
            os.sched_setaffinity(self._process.pid, cores)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        stream = self._process.stderr
        if stream is None:
            return
        for line in stream:
            self._log.append(line.rstrip())
            if not self._address and (found := _READY.search(line)):
                self._address = found.group(1)
                self._ready.set()
        self._ready.set()

    @property
    def log(self) -> str:
        """The last lines that the node logged."""
        return "\n".join(self._log)

    @property
    def doing(self) -> str:
        """The last thing that the node logged, without time and place; empty at first."""
        last = self._log[-1] if self._log else ""
        return _LOG_PREFIX.sub("", last)

    def is_settled(self, timeout_s: float) -> bool:
        """Whether it is ready, or has ended, within that time: `wait_ready` returns at once."""
        return self._ready.wait(timeout_s)

    def wait_ready(self, timeout_s: float) -> str:
        """The "host:port" it listens on. UnavailableError with its log when it does not come up."""
        in_time = self._ready.wait(timeout_s)
        if self._address:
            return self._address
        what = "ended before it was ready" if in_time else f"was not ready after {timeout_s:.0f} s"
        raise UnavailableError(f"{self.module} {what}. Its log:\n{self.log}", reason="NODE_NOT_UP")

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_end(self, timeout_s: float) -> int:
        """Its exit status; -N where signal N killed it. Raises subprocess.TimeoutExpired."""
        return self._process.wait(timeout_s)

    def pause(self) -> None:
        """It computes nothing until `resume`. Nothing happens where it has ended."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """It goes on where it was paused."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Asks the process to end, kills it where it takes too long; returns when it has ended."""
        if self._process.poll() is None:
            self._process.terminate()
            self.resume()  # while it is paused it hears of nothing else
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._reader.join(_STOP_S)
        if self._process.stderr is not None:
            self._process.stderr.close()
