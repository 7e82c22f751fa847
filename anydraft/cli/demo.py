"""`anydraft demo`: two nodes, two model families, one answer: watch it, then see what it cost."""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from anydraft.cli.demo_report import Parting, Report, Row
from anydraft.cli.nodes import NodeProcess
from anydraft.client import Client, GenerationResult, Stream
from anydraft.machine import available_cores

if TYPE_CHECKING:
    from rich.console import Console

TARGET = "qwen2.5-coder-0.5b-instruct"
ASSISTANT = "smollm2-135m-instruct"
_PROMPTS = (
    "Write a Python function that checks whether a string is a palindrome, with a docstring.",
    "Write a Python class Stack with push, pop, peek and is_empty.",
    "Write a Python function that counts how often each word occurs in a text.",
    "Explain in a few sentences what a binary search does, then show it in Python.",
)
_READY_TIMEOUT_S = 600.0
_ANSWER_TIMEOUT_S = 600.0


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = subparsers.add_parser("demo", help="run both nodes here and compare with the target alone")
    p.add_argument("--target", default=TARGET, help="the large model (default: %(default)s)")
    p.add_argument("--assistant", default=ASSISTANT, help="the small one (default: %(default)s)")
    p.add_argument("--dtype", default="auto", help="precision of the target (auto: fp32 on a CPU)")
    p.add_argument("--prompt", action="append", help="instead of the built-in ones; repeatable")
    p.add_argument("--max-new-tokens", type=int, default=96)
    p.add_argument("--output", type=Path, metavar="FILE", help="write the table as JSON, too")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    console = Console(highlight=False)
    started = time.monotonic()
    with ExitStack() as stack:
        target_only, assisted = _start(args, console, stack)
        console.print(
            f"both nodes are up after {time.monotonic() - started:.0f} s. "
            "[green]Green[/] was drafted by the assistant and accepted; the rest the target said.\n"
        )
        rows = [
            _compare(prompt, args.max_new_tokens, target_only, assisted, console)
            for prompt in args.prompt or _PROMPTS
        ]
        engine = target_only.server_info().engine
    report = Report(args.target, args.assistant, engine, args.max_new_tokens, rows)
    report.show(console)
    if args.output:
        args.output.write_text(json.dumps(report.as_json(), indent=2) + "\n")
    return 0 if report.is_lossless else 1


def _start(args: argparse.Namespace, console: Console, stack: ExitStack) -> tuple[Client, Client]:
    """Clients of the verify node (target only) and of the draft node (assisted), warmed up."""
    from anydraft.models import resolve_assistant, resolve_model

    console.print(f"target [bold]{args.target}[/], assistant [bold]{args.assistant}[/]")
    assistant = _in_background(lambda: resolve_assistant(args.assistant))
    resolve_model(args.target)
    console.print("loading the target, preparing the assistant …")
    verify = stack.enter_context(
        NodeProcess(
            "verify_node",
            ["--model", args.target, "--listen", "127.0.0.1:0", "--dtype", args.dtype],
        )
    )
    folder = assistant.result()
    verify_address = verify.wait_ready(_READY_TIMEOUT_S)
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
        client.generate("Hello", max_new_tokens=4, timeout=_ANSWER_TIMEOUT_S).result()
    return clients[0], clients[1]


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


def _draft_threads() -> int:
    """Half of the cores: here the target's threads want the others at the same time."""
    return max(available_cores() // 2, 1)


def _compare(
    prompt: str, max_new_tokens: int, target_only: Client, assisted: Client, console: Console
) -> Row:
    console.print(f"[bold cyan]> {prompt}[/]")
    with_drafts = _show(assisted, prompt, max_new_tokens, console)
    alone = _ask(target_only, prompt, max_new_tokens).result()
    stats = with_drafts.stats
    return Row(
        prompt=prompt,
        tokens=len(with_drafts.token_ids),
        target_only_rate=alone.stats.tokens_per_second,
        assisted_rate=stats.tokens_per_second,
        acceptance=stats.acceptance_rate or 0.0,
        tokens_per_round=stats.completion_tokens / max(stats.rounds, 1),
        wire_bytes=stats.sent_bytes + stats.received_bytes,
        parting=_parting(prompt, alone.token_ids, with_drafts.token_ids, target_only),
    )


def _parting(
    prompt: str, alone: Sequence[int], assisted: Sequence[int], target_only: Client
) -> Parting | None:
    """Asks the target once more, up to the first token that differs, and how likely both are."""
    if alone == assisted:
        return None
    pairs = enumerate(zip(alone, assisted, strict=False))
    index = next((i for i, (mine, theirs) in pairs if mine != theirs), None)
    if index is None:  # one goes on where the other ends
        return Parting(min(len(alone), len(assisted)), None)
    again = _ask(target_only, prompt, index + 1, logprobs=2).result()
    logprobs = {token.token_id: token.logprob for token in again.logprobs[index].top}
    mine, theirs = (logprobs.get(ids[index]) for ids in (alone, assisted))
    return Parting(index, None if mine is None or theirs is None else mine - theirs)


def _ask(
    client: Client, prompt: str, max_new_tokens: int, *, logprobs: int | None = None
) -> Stream:
    return client.generate(
        messages=[{"role": "user", "content": prompt}],
        max_new_tokens=max_new_tokens,
        temperature=0,
        logprobs=logprobs,
        timeout=_ANSWER_TIMEOUT_S,
    )


def _show(client: Client, prompt: str, max_new_tokens: int, console: Console) -> GenerationResult:
    from rich.text import Text

    stream = _ask(client, prompt, max_new_tokens)
    for event in stream:
        own = event.text[len(event.drafted_text) :]
        console.print(Text(event.drafted_text, style="green") + Text(own), end="", soft_wrap=True)
    console.print("\n")
    return stream.result()
