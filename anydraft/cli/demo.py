"""`anydraft demo`: two nodes, two model families, one answer: watch it, then see what it cost."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from anydraft.cli.nodes import NodeProcess
from anydraft.client import Client, GenerationResult, Stream

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


@dataclass(frozen=True)
class Row:
    """One prompt, both ways. Rates in target tokens per second of the whole request."""

    prompt: str
    tokens: int
    target_only_rate: float
    assisted_rate: float
    acceptance: float
    tokens_per_round: float
    wire_bytes: int
    identical: bool

    @property
    def speedup(self) -> float:
        return self.assisted_rate / self.target_only_rate


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
    _print_table(rows, console)
    if args.output:
        args.output.write_text(json.dumps(_as_json(rows, args), indent=2) + "\n")
    return 0 if all(row.identical for row in rows) else 1


def _start(args: argparse.Namespace, console: Console, stack: ExitStack) -> tuple[Client, Client]:
    """Clients of the verify node (target only) and of the draft node (assisted), warmed up."""
    from anydraft.models import resolve_assistant, resolve_model

    console.print(f"target [bold]{args.target}[/], assistant [bold]{args.assistant}[/]")
    resolve_model(args.target)
    console.print("loading the target, preparing the assistant …")
    verify = stack.enter_context(
        NodeProcess(
            "verify_node",
            ["--model", args.target, "--listen", "127.0.0.1:0", "--dtype", args.dtype],
        )
    )
    assistant = resolve_assistant(args.assistant)
    verify_address = verify.wait_ready(_READY_TIMEOUT_S)
    draft = stack.enter_context(
        NodeProcess(
            "draft_node",
            [
                *("--model", str(assistant), "--listen", "127.0.0.1:0"),
                *("--verify", verify_address, "--threads", str(_draft_threads())),
            ],
        )
    )
    draft_address = draft.wait_ready(_READY_TIMEOUT_S)
    clients = [stack.enter_context(Client(a)) for a in (verify_address, draft_address)]
    for client in clients:
        client.generate("Hello", max_new_tokens=4, timeout=_ANSWER_TIMEOUT_S).result()
    return clients[0], clients[1]


def _draft_threads() -> int:
    """Half of the cores: here the target's threads want the others at the same time."""
    return max(len(os.sched_getaffinity(0)) // 2, 1)


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
        identical=alone.token_ids == with_drafts.token_ids and alone.text == with_drafts.text,
    )


def _ask(client: Client, prompt: str, max_new_tokens: int) -> Stream:
    return client.generate(
        messages=[{"role": "user", "content": prompt}],
        max_new_tokens=max_new_tokens,
        temperature=0,
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


def _print_table(rows: Sequence[Row], console: Console) -> None:
    from rich import box
    from rich.table import Table

    table = Table(
        title="the target alone and assisted, tokens per second",
        box=box.SIMPLE,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("prompt", no_wrap=True, width=18)
    for name in ("ids", "alone", "assisted", "gain", "kept", "/step", "bytes", "same"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in [*rows, _total(rows)]:
        table.add_row(
            row.prompt,
            str(row.tokens),
            f"{row.target_only_rate:.1f}",
            f"{row.assisted_rate:.1f}",
            f"{row.speedup:.2f}x",
            f"{row.acceptance:.0%}",
            f"{row.tokens_per_round:.2f}",
            str(row.wire_bytes),
            "yes" if row.identical else "NO",
        )
    console.print(table)
    console.print(
        "ids: target tokens; kept: drafted tokens that stood; /step: tokens a step of the target; "
        "bytes: between the nodes, both ways; same: ids and text identical."
    )


def _total(rows: Sequence[Row]) -> Row:
    """All prompts as one: rates over the summed times, shares weighted by tokens."""
    tokens = sum(row.tokens for row in rows)
    return Row(
        prompt="all",
        tokens=tokens,
        target_only_rate=tokens / sum(row.tokens / row.target_only_rate for row in rows),
        assisted_rate=tokens / sum(row.tokens / row.assisted_rate for row in rows),
        acceptance=sum(row.acceptance * row.tokens for row in rows) / tokens,
        tokens_per_round=tokens / sum(row.tokens / row.tokens_per_round for row in rows),
        wire_bytes=sum(row.wire_bytes for row in rows),
        identical=all(row.identical for row in rows),
    )


def _as_json(rows: Sequence[Row], args: argparse.Namespace) -> dict[str, object]:
    import platform

    return {
        "target": args.target,
        "assistant": args.assistant,
        "max_new_tokens": args.max_new_tokens,
        "machine": {
            "cores": os.cpu_count(),
            "processor": _processor(),
            "python": platform.python_version(),
        },
        "rows": [asdict(row) | {"speedup": row.speedup} for row in [*rows, _total(rows)]],
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"
