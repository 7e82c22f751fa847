"""What all scripts share: their command line, the machine's facts, nodes, requests."""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import grpc
import psutil

from anydraft.cli.nodes import NodeProcess
from anydraft.closing import Closing
from anydraft.machine import available_cores, cpu_fact
from anydraft.v1.generation_pb2 import GenerateRequest
from anydraft.v1.prompt_pb2 import GenerationSpec, Prompt, SamplingParams, StopConditions

MODEL = "smollm2-135m-instruct"
"""Small and quick to load, with a context of 8192 tokens."""
KV_BYTES_PER_TOKEN = 2 * 30 * 3 * 64 * 4
"""Of MODEL in fp32: keys and values, layers, heads that store them, their size, bytes a number."""
READY_TIMEOUT_S = 600.0
_RETURN_STOP_S = 60.0

Findings = dict[str, object]
Measure = Callable[[bool], Findings]
"""Called with whether the short form is wanted."""

_PACKAGES = ("grpcio", "onnxruntime", "torch", "transformers")


def parser(description: str | None) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--short", action="store_true", help="less of everything, for a first look")
    p.add_argument("--output", type=Path, metavar="FILE", help="write the JSON there as well")
    return p


def run_script(description: str | None, measure: Measure, argv: Sequence[str] | None) -> int:
    """The whole `main` of a script that takes no arguments of its own."""
    return run(parser(description).parse_args(argv), measure)


def run(args: argparse.Namespace, measure: Measure) -> int:
    """Measures as `parser` was told to; prints the findings and the machine's facts as JSON."""
    # By default SIGTERM would end the script without a word to its nodes.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    started = time.monotonic()
    try:
        findings = measure(args.short)
    finally:
        signal.signal(signal.SIGTERM, before)
    facts = {"machine": machine_facts(), "model": MODEL, "short": args.short}
    report = facts | findings | {"took_s": round(time.monotonic() - started)}
    text = json.dumps(report, indent=2, ensure_ascii=False)
    print(text)  # noqa: T201
    if args.output is not None:
        args.output.write_text(text + "\n", encoding="utf-8")
    return 0


def machine_facts() -> Findings:
    return {
        "cores": available_cores(),
        "processor": cpu_fact("model name") or "unknown",
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class BenchmarkNode(NodeProcess):
    """A node whose process can be looked at, and stopped on the clock."""

    @property
    def process(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def terminate(self, timeout_s: float) -> tuple[float, int | None]:
        """Sends SIGTERM; seconds until the process ended and its exit code, None if it did not."""
        started = time.monotonic()
        self._process.terminate()
        try:
            code: int | None = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        return time.monotonic() - started, code


class ReturningNode(Closing):
    """A node that comes back under its address."""

    def __init__(self, module: str, *args: str) -> None:
        self._module, self._args = module, args
        self._node = BenchmarkNode(module, [*args, "--listen", "127.0.0.1:0"])
        self.address = self._node.wait_ready(READY_TIMEOUT_S)

    def kill_and_restart(self) -> None:
        """Returns before it is ready."""
        self._node.process.kill()
        self._node.close()
        self._start()

    def stop_and_restart(self) -> int | None:
        """Its exit status; returns when it is ready again."""
        _, status = self._node.terminate(_RETURN_STOP_S)
        self._node.close()
        self._start()
        self.wait_ready()
        return status

    def wait_ready(self) -> None:
        self._node.wait_ready(READY_TIMEOUT_S)

    def close(self) -> None:
        self._node.close()

    def _start(self) -> None:
        self._node = BenchmarkNode(self._module, [*self._args, "--listen", self.address])


@contextmanager
def running_node(module: str, *args: str) -> Iterator[tuple[BenchmarkNode, str]]:
    """A node on a free port of loopback and its address; ended with the block."""
    node = BenchmarkNode(module, [*args, "--listen", "127.0.0.1:0"])
    with node:
        yield node, node.wait_ready(READY_TIMEOUT_S)


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables for the processes that the block starts."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def prompt_of(num_tokens: int) -> str:
    """About `num_tokens` tokens of MODEL."""
    return "the " * num_tokens


def spec(prompt: str, max_new_tokens: int, logprobs: int | None = None) -> GenerationSpec:
    """Greedy, and past every end of sequence: only the limit ends it."""
    return GenerationSpec(
        prompt=Prompt(text=prompt),
        sampling=SamplingParams(temperature=0),
        stop=StopConditions(max_new_tokens=max_new_tokens, ignore_eos=True),
        logprobs=logprobs,
    )


def request(prompt: str, max_new_tokens: int, logprobs: int | None = None) -> GenerateRequest:
    return GenerateRequest(spec=spec(prompt, max_new_tokens, logprobs))


def rounded(seconds: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in seconds]


def describe_error(error: grpc.RpcError) -> str:
    """Status and first words of what a node answered."""
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {(error.details() or '')[:200]}"
    return repr(error)[:200]
