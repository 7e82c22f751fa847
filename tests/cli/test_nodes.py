"""Nodes as processes: when they are ready, what they do meanwhile, and why they are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from anydraft.cli.nodes import NodeProcess
from anydraft.errors import UnavailableError

LINE = "2026-01-01T00:00:00 INFO verify_node.load: "


def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> str:
    (tmp_path / "a_node.py").write_text(f"import sys, time\n{body}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "a_node"


def test_a_node_that_comes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f"""
print("{LINE}loading weights", file=sys.stderr, flush=True)
sys.stdin.read()
print("{LINE}anydraft-verify ready on 127.0.0.1:5 (model x)", file=sys.stderr, flush=True)
time.sleep(60)"""
    with NodeProcess(_module(tmp_path, monkeypatch, body), []) as node:
        assert node.is_settled(60)
        assert node.wait_ready(0) == "127.0.0.1:5"
        assert node.doing == "anydraft-verify ready on 127.0.0.1:5 (model x)"
        assert "loading weights" in node.log


def test_a_node_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'print("anydraft-verify: no such model", file=sys.stderr); sys.exit(2)'
    with NodeProcess(_module(tmp_path, monkeypatch, body), []) as node:
        assert node.is_settled(60)
        with pytest.raises(UnavailableError, match=r"ended before it was ready[^\0]*no such model"):
            node.wait_ready(0)


def test_a_node_that_takes_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with NodeProcess(_module(tmp_path, monkeypatch, "time.sleep(60)"), []) as node:
        assert not node.is_settled(0)
        assert node.doing == ""
        with pytest.raises(UnavailableError, match="was not ready after 0 s"):
            node.wait_ready(0)


def test_a_node_that_is_paused_stands_still_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = """
import signal
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print("ready on 127.0.0.1:5", file=sys.stderr, flush=True)
time.sleep(60)"""
    with NodeProcess(_module(tmp_path, monkeypatch, body), []) as node:
        node.wait_ready(60)
        process = psutil.Process(node._process.pid)
        node.pause()
        _wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        node.resume()
        _wait_for(lambda: process.status() != psutil.STATUS_STOPPED)
        node.pause()
    assert node._process.returncode == 5, "it was asked to end, not killed"
    node.pause()
    node.resume()


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_nodes_end_with_who_started_them(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = _module(tmp_path, monkeypatch, "time.sleep(60)")
    code = f"""
import time
from anydraft.cli.nodes import NodeProcess, leaving_on_signals
with leaving_on_signals(), NodeProcess("{name}", []) as node:
    print(node._process.pid, flush=True)
    time.sleep(60)"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.send_signal(number)
        assert process.wait(30) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
