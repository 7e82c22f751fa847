"""The process of the peer: asked in its turn, and paused at all other times."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

import psutil
import pytest

from anydraft.bench.peer_arms import PeerArm
from anydraft.bench.tasks import Task
from anydraft.errors import InternalError

TASK = Task("qa", "Hello", 4)
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="it is paused on Linux only")


@dataclass
class Process:
    log: list[str] = field(default_factory=list)

    def pause(self) -> None:
        self.log.append("pause")

    def resume(self) -> None:
        self.log.append("resume")


@on_linux
@pytest.mark.parametrize("fails", [False, True])
async def test_it_runs_while_it_is_asked(fails: bool) -> None:
    process = Process()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        process.log.append(asked["prompt"])
        if not fails:
            writer.write(json.dumps({"ids": [5, 6], "arrivals": [[0.5, 2]]}).encode() + b"\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        arm = PeerArm("peer", f"{host}:{port}", process, assisted=False)
        if fails:
            with pytest.raises(InternalError, match="drop --peers"):
                await arm.ask(TASK)
        else:
            assert (await arm.ask(TASK)).ids == (5, 6)
    assert process.log == ["resume", "Hello", "pause"]


@on_linux
@pytest.mark.processes
def test_a_paused_peer_ends_with_whoever_started_it_and_was_killed() -> None:
    """Killed: nothing of his own is run any more, and the peer would stand still for ever."""
    peer = "import time; from anydraft.bench.peer import _end_with_parent; _end_with_parent()"
    peer += "; print('ready', flush=True); time.sleep(60)"
    code = f"""
import os, signal, subprocess, sys, time
peer = subprocess.Popen([sys.executable, "-c", {peer!r}], stdout=subprocess.PIPE)
peer.stdout.readline()
peer.send_signal(signal.SIGSTOP)
print(peer.pid, flush=True)
time.sleep(60)"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        peer_process = psutil.Process(int(starter.stdout.readline()))
        os.kill(starter.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while peer_process.is_running() and peer_process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)
