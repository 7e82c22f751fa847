"""`anydraft demo`: two nodes, two model families, one answer: watch it, then see what it cost."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from anydraft.cli.demo_answers import ANSWER_TIMEOUT_S, compare, drafted_style
from anydraft.cli.demo_report import Report
from anydraft.cli.nodes import NodeProcess, leaving_on_signals
from anydraft.cli.pair_flags import add_length_flag, add_pair_flags
from anydraft.client import Client
from anydraft.errors import InvalidRequestError
from anydraft.extras import missing_package
from anydraft.machine import available_cores

if TYPE_CHECKING:
    from rich.console import Console

TARGET = "qwen2.5-coder-0.5b-instruct"
_PROMPTS = (
    "Write a Python function that checks whether a string is a palindrome, with a docstring.",
    "Write a Python class Stack with push, pop, peek and is_empty.",
    "Write a Python function that counts how often each word occurs in a text.",
    "Explain in a few sentences what a binary search does, then show it in Python.",
)
_READY_TIMEOUT_S = 600.0
_BEAT_S = 10.0
"""Between two lines that say what the demo waits for."""
_NEEDED = ("rich", "onnxruntime", "torch", "transformers")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = subparsers.add_parser(
        "demo",
        help="run both nodes here and compare with the target alone",
        description="Start a target and an assistant here, let both answer the same prompts, and "
        "compare with the target alone. Models are fetched once, into the cache.",
    )
    add_pair_flags(p, TARGET)
    p.add_argument(
        "--prompt", action="append", metavar="TEXT", help="instead of the built-in ones; repeatable"
    )
    add_length_flag(p)
    p.add_argument("--output", type=Path, metavar="FILE", help="write the table as JSON, too")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    _require_packages()
    _require_writable(args.output)
    from rich.console import Console

    console = Console(highlight=False)
    prompts = args.prompt or _PROMPTS
    with leaving_on_signals(), ExitStack() as stack:
        target_only, assisted = _start(args, console, stack)
        console.print(f"\n{_legend(console)}\n")
        rows = []
        for number, prompt in enumerate(prompts, start=1):
            console.print(f"[bold cyan]{number}>[/]", end=" ")
            console.print(prompt, style="bold cyan", markup=False, soft_wrap=True)
            rows.append(compare(prompt, args.max_new_tokens, target_only, assisted, console))
        info = target_only.server_info()
    report = Report(
        args.target, args.assistant, info.engine, info.dtype, args.max_new_tokens, tuple(rows)
    )
    report.show(console)
    if args.output:
        args.output.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    _show_next_step(args, console)
    return 0 if report.is_lossless else 1


def _require_packages() -> None:
    """Before anything is fetched. Raises FailedPreconditionError."""
    missing = [module for module in _NEEDED if find_spec(module) is None]
    if missing:
        raise missing_package(", ".join(missing), "cli,draft,export,verify")


def _require_writable(output: Path | None) -> None:
    """Before minutes of work are spent on it. Raises InvalidRequestError."""
    if output is None:
        return
    there = output if output.exists() else output.absolute().parent
    if output.is_dir() or not os.access(there, os.W_OK):
        raise InvalidRequestError(
            f"--output {output} cannot be written: name a file in a folder that you may write to",
            reason="INVALID_SETTINGS",
        )


def _legend(console: Console) -> str:
    if not console.is_terminal:
        return "Each answer below is the assisted one; on a terminal, accepted drafts are coloured."
    style = drafted_style(console)
    name = "Green" if style == "green" else "Underlined"
    return (
        f"[{style}]{name}[/] text was drafted by the assistant and accepted by the target; the "
        "rest the target wrote itself."
    )


def _start(args: argparse.Namespace, console: Console, stack: ExitStack) -> tuple[Client, Client]:
    """Clients of the verify node (target only) and of the draft node (assisted), warmed up."""
    from rich.markup import escape

    from anydraft.models import resolve_assistant, resolve_model

    for role, name in (("target", args.target), ("assistant", args.assistant)):
        console.print(f"{role:<10}[bold]{escape(name)}[/] {_size_of(name)}")
    steps = _Steps(console)
    assistant = _in_background(lambda: resolve_assistant(args.assistant))
    target = _in_background(lambda: resolve_model(args.target).folder)
    has_bars = sys.stderr.isatty()  # which show how far it is
    fetching = "" if has_bars else f"fetching {args.target}"
    steps.wait(lambda limit_s: _is_here(target, assistant, limit_s), lambda: fetching)
    steps.say("the target's files are here; loading them")
    verify = stack.enter_context(
        NodeProcess(
            "verify_node",
            [
                *("--model", args.target, "--listen", "127.0.0.1:0", "--dtype", args.dtype),
                "--no-prefix-cache",  # both ways are asked for the same prompts
            ],
        )
    )
    preparing = "" if has_bars else f"preparing {args.assistant}"
    steps.wait(lambda limit_s: _is_here(assistant, target, limit_s), lambda: preparing)
    folder = assistant.result()
    steps.say("the assistant is here, as ONNX")
    steps.wait(verify.is_settled, lambda: f"the target: {verify.doing or 'starting'}")
    verify_address = verify.wait_ready(0)
    steps.say("the target is loaded")
    draft = stack.enter_context(
        NodeProcess(
            "draft_node",
            [
                *("--model", str(folder), "--listen", "127.0.0.1:0"),
                *("--verify", verify_address, "--threads", str(_draft_threads())),
            ],
        )
    )
    draft_address = draft.wait_ready(_READY_TIMEOUT_S)
    clients = [stack.enter_context(Client(a)) for a in (verify_address, draft_address)]
    for client in clients:
        client.generate("Hello", max_new_tokens=4, timeout=ANSWER_TIMEOUT_S).result()
    steps.say("both nodes answer")
    return clients[0], clients[1]


class _Steps:
    """Says what is done or going on, and how long after the start."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_at_s = time.monotonic()

    def say(self, what: str) -> None:
        elapsed_s = time.monotonic() - self._started_at_s
        self._console.print(f"{elapsed_s:5.0f} s  {what}", markup=False, soft_wrap=True)

    def wait(self, settled: Callable[[float], bool], doing: Callable[[], str]) -> None:
        """Until `settled` (called with a number of seconds to wait) is true; says now and then what
        goes on meanwhile."""
        while not settled(_BEAT_S):
            if what := doing():
                self.say(f"… {what}")


def _size_of(name: str) -> str:
    """What is known of a model before it is fetched; nothing for one that has no short name."""
    from anydraft.models.cache import human_bytes
    from anydraft.models.pull import is_cached
    from anydraft.models.registry import load_registry

    entry = load_registry().get(name)
    if entry is None:
        return ""
    where = "in the cache" if is_cached(entry) else "to be fetched, once"
    return f"({human_bytes(entry.size_bytes)}, {where})"


def _in_background(work: Callable[[], Path]) -> Future[Path]:
    """On a daemon thread, so that an error elsewhere ends the demo at once."""
    future: Future[Path] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _is_here(wanted: Future[Path], beside: Future[Path], limit_s: float) -> bool:
    """Raises the error of whichever fails first: that one cannot be had should not wait for the
    other's gigabytes."""
    if not (beside.done() and beside.exception()):
        wait({wanted} if beside.done() else {wanted, beside}, limit_s, FIRST_COMPLETED)
    for future in (wanted, beside):
        if future.done():
            future.result()
    return wanted.done()


def _draft_threads() -> int:
    """Half of the cores: here the target's threads want the others at the same time."""
    return max(available_cores() // 2, 1)


def _show_next_step(args: argparse.Namespace, console: Console) -> None:
    folder = _folder_of_programs()
    console.print(
        "Next, talk with them: each of these in a terminal of its own.\n"
        f"  {folder}anydraft-verify --model {args.target}\n"
        f"  {folder}anydraft-draft --model {args.assistant} --threads {_draft_threads()} "
        "--verify 127.0.0.1:50051\n"
        f"  {folder}anydraft chat --server 127.0.0.1:50061",
        markup=False,
        soft_wrap=True,
    )


def _folder_of_programs() -> str:
    """What to put before a program's name: nothing where the shell finds this installation's."""
    mine = Path(sys.executable).parent
    found = shutil.which("anydraft-verify")
    if found and Path(found).parent == mine:
        return ""
    near = mine.relative_to(Path.cwd()) if mine.is_relative_to(Path.cwd()) else mine
    return f"{near}{os.sep}"
