"""Chat templates, rendered by processes that bound what a template may cost.

A template is a program of somebody else. In this process it could hold the interpreter lock, and
take all memory, for as long as it likes; `template_worker.py` says what its process allows.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from anydraft.errors import (
    FailedPreconditionError,
    InvalidRequestError,
    ResourceExhaustedError,
)
from anydraft.text.template_worker import BROKEN, COSTLY, MAX_CHARACTERS, TIME_LIMIT_S

MAX_PROCESSES = 2
"""So that one chat whose rendering is cut off delays no other."""

_WORKER = Path(__file__).with_name("template_worker.py")


class TemplateProcesses:
    """Renders templates for several threads at once. Processes start when they are first needed,
    one for each thread that renders at the same time, and end with this process however it ends,
    since their input does."""

    def __init__(self, max_processes: int = MAX_PROCESSES) -> None:
        self._free = threading.Semaphore(max_processes)
        self._idle: list[_Process] = []

    def render(self, template: str, variables: Mapping[str, Any]) -> str:
        """What jinja2 makes of `template`; `variables` as JSON can say them.

        Raises InvalidRequestError when the template raises something or costs too much,
        FailedPreconditionError when it does not parse, ResourceExhaustedError when no process can
        be started. Waits while all processes render: a few seconds at most for each before it.
        """
        request = {"template": template, "variables": dict(variables)}
        # transformers' special tokens may be objects.
        line = json.dumps(request, ensure_ascii=False, default=str) + "\n"
        with self._process() as process:
            answer = process.ask(line.encode("utf-8", "surrogatepass"))
        if answer is None or answer.get("error") == COSTLY:
            raise InvalidRequestError(
                "The model's chat template makes too much of these messages: more than "
                f"{TIME_LIMIT_S:g} s of work, or {MAX_CHARACTERS:,} characters. Send fewer, or "
                "send the prompt as text.",
                reason="CHAT_TEMPLATE_TOO_COSTLY",
            )
        if answer.get("error") == BROKEN:
            raise FailedPreconditionError(
                f"The model's chat template does not parse ({answer['message']}). Replace its "
                "chat_template.jinja, or send prompts as text.",
                reason="CHAT_TEMPLATE_BROKEN",
            )
        if "error" in answer:
            raise InvalidRequestError(
                f"The model's chat template refuses these messages: {answer['message']}. "
                "Change the roles or their order, or send the prompt as text.",
                reason="CHAT_TEMPLATE_REFUSED",
            )
        return answer["text"]

    def warm_up(self) -> None:
        """Starts a process if none is idle, so that the first prompt need not wait for it."""
        if not self._idle:
            with contextlib.suppress(ResourceExhaustedError):  # the first prompt says it
                self._idle.append(_Process())

    def close(self) -> None:
        """Ends the idle processes."""
        while self._idle:
            self._idle.pop().end()

    @contextlib.contextmanager
    def _process(self) -> Iterator[_Process]:
        with self._free:
            process = self._take_idle() or _Process()
            try:
                yield process
            except BaseException:
                process.end()  # whoever asked it next would get this answer
                raise
            if process.runs():
                self._idle.append(process)
            else:
                process.end()

    def _take_idle(self) -> _Process | None:
        while self._idle:
            process = self._idle.pop()
            if process.runs():
                return process
            process.end()
        return None


class _Process:
    """One that runs `template_worker.py`."""

    def __init__(self) -> None:
        try:
            self._popen = subprocess.Popen(
                # Without its folder in the path, whose files would hide modules of the same name.
                [sys.executable, "-P", str(_WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # An interrupt at the terminal is for the node, which finishes its answers.
                start_new_session=True,
            )
        except OSError as error:
            raise _not_started(str(error)) from error
        self._started = False

    @property
    def pid(self) -> int:
        return self._popen.pid

    def runs(self) -> bool:
        return self._popen.poll() is None

    def ask(self, request: bytes) -> dict[str, str] | None:
        """None when the process ends before it answers."""
        if not self._started and self._read() is None:
            raise _not_started(f"{sys.executable} ended with {self._popen.returncode}")
        self._started = True
        if self._popen.stdin is None:
            return None
        try:
            self._popen.stdin.write(request)
            self._popen.stdin.flush()
        except OSError:
            return None
        return self._read()

    def end(self) -> None:
        self._popen.kill()
        with contextlib.suppress(OSError), self._popen:  # closes the pipes and waits
            pass

    def _read(self) -> dict[str, str] | None:
        line = self._popen.stdout.readline() if self._popen.stdout else b""
        if not line.endswith(b"\n"):
            self._popen.wait()
            return None
        answer: dict[str, str] = json.loads(line.decode("utf-8", "surrogatepass"))
        return answer


def _not_started(why: str) -> ResourceExhaustedError:
    return ResourceExhaustedError(
        f"No process can be started to render the chat template ({why}). Free memory or "
        "processes, and try again.",
        reason="CHAT_TEMPLATE_PROCESS_FAILED",
    )


PROCESSES = TemplateProcesses()
atexit.register(PROCESSES.close)
