"""`anydraft bench`: does this pair pay, on this network? Target alone and assisted, in turns."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from anydraft.bench.plan import RANDOM, Conditions, Recorded
from anydraft.cli.bench_flags import add_flags, check, pair_of, sweep_of
from anydraft.cli.nodes import leaving_on_signals
from anydraft.cli.pair_flags import ASSISTANT
from anydraft.extras import missing_package

if TYPE_CHECKING:
    from rich.console import Console

    from anydraft.bench.arms import Arm
    from anydraft.bench.runs import Outcome
    from anydraft.bench.tasks import Task

_NEEDED = ("rich", "onnxruntime")
_NEEDED_FOR_A_TARGET = ("torch", "transformers")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    p = subparsers.add_parser(
        "bench",
        help="measure what drafting brings, with a real target or a simulated one",
        description="Ask the target alone and with drafts, prompt by prompt, and say whether this "
        "pair pays on this network. Everything runs here, or against a verify node that runs "
        "elsewhere.",
    )
    add_flags(p)
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    check(args)
    _require_packages(args)
    from rich.console import Console

    console = Console(highlight=False)
    with leaving_on_signals():
        if args.record is not None:
            return _record(args, console)
        return _measure(args, console)


def _measure(args: argparse.Namespace, console: Console) -> int:
    from anydraft.bench.driver import Watch, measure
    from anydraft.bench.machine_facts import machine_facts
    from anydraft.bench.table import show_legend, show_row
    from anydraft.bench.verdict import sentence

    tasks = _tasks(args)
    folder = _assistant_folder(args)
    say = _Say(console)
    watch = Watch(say.line, say.row_begins, say.heard, lambda row: show_row(console, row))
    with ExitStack() as stack:
        rows = asyncio.run(
            measure(
                pair_of(args),
                folder,
                sweep_of(args),
                tasks,
                watch,
                repeats=args.repeats,
                recorded=_recorded(args, folder, stack),
                peers=_peers(args, stack),
            )
        )
    show_legend(console)
    verdict = sentence(args.target, args.assistant, rows)
    console.print(f"\n[bold]{verdict}[/]\n", soft_wrap=True)
    report = {
        "machine": machine_facts(),
        "pair": _pair_facts(args),
        "simulated": rows if args.simulate else [],
        "real": None if args.simulate else rows[0],
        "real_rows": [] if args.simulate else rows,
        "verdict": verdict,
    }
    _write(args, report)
    return 0 if all(row["ids_equal"] for row in rows) or not args.simulate else 1


def _record(args: argparse.Namespace, console: Console) -> int:
    from anydraft.bench.asking import record
    from anydraft.bench.recordings import Recording, write_recordings
    from anydraft.bench.site import READY_TIMEOUT_S, target_node

    tasks = _tasks(args)
    with ExitStack() as stack:
        address = args.verify or stack.enter_context(target_node(pair_of(args))).wait_ready(
            READY_TIMEOUT_S
        )

        done: list[Recording] = []

        def heard(recording: Recording) -> None:
            """Whoever interrupts it keeps what there is."""
            done.append(recording)
            write_recordings(args.record, done)
            console.print(f"{recording.category:16} {len(recording.ids)} tokens", highlight=False)

        asked = record(address, tasks, max(args.sessions), heard)
        write_recordings(args.record, asyncio.run(asked))
    console.print(f"{len(done)} answers are in {args.record}", soft_wrap=True)
    return 0


def _require_packages(args: argparse.Namespace) -> None:
    """Before anything is fetched. Raises FailedPreconditionError."""
    needed = _NEEDED if args.verify else (*_NEEDED, *_NEEDED_FOR_A_TARGET)
    missing = [module for module in needed if find_spec(module) is None]
    if missing:
        raise missing_package(", ".join(missing), "cli,draft,export,verify")


def _tasks(args: argparse.Namespace) -> Sequence[Task]:
    from anydraft.bench.recordings import read_recordings
    from anydraft.bench.sources import SPEC_BENCH
    from anydraft.bench.tasks import tasks_of_recordings, tasks_of_suite

    if args.simulate:
        recordings = read_recordings(args.answers)
        return tasks_of_recordings(recordings, args.suite, args.prompts, args.max_new_tokens)
    seed = args.seed if args.temperature else None
    suite = args.suite or SPEC_BENCH
    return tasks_of_suite(suite, args.prompts, args.max_new_tokens, args.temperature, seed)


def _assistant_folder(args: argparse.Namespace) -> Path:
    from anydraft.models import resolve_assistant

    return resolve_assistant(ASSISTANT if args.assistant == RANDOM else args.assistant)


def _recorded(args: argparse.Namespace, folder: Path, stack: ExitStack) -> Recorded | None:
    from anydraft.models.cache import cache_root, make_folder

    if not args.simulate:
        return None
    choices = args.choices
    if choices is None:
        choices = make_folder(cache_root() / "choices") / f"{folder.resolve().name}.jsonl"
    notes = Path(stack.enter_context(TemporaryDirectory())) / "notes.jsonl"
    return Recorded(args.answers, choices, notes)


def _peers(args: argparse.Namespace, stack: ExitStack) -> Sequence[Arm]:
    if not args.peers:
        return ()
    from anydraft.bench.peer_arms import peer_arms

    return peer_arms(pair_of(args), stack)


def _pair_facts(args: argparse.Namespace) -> dict[str, object]:
    names = ("target", "assistant", "dtype", "threads", "target_threads", "temperature", "suite")
    facts: dict[str, object] = {name: getattr(args, name) for name in names}
    facts |= {"target_cores": args.target_cores, "assistant_cores": args.assistant_cores}
    facts |= {"max_new_tokens": args.max_new_tokens, "repeats": args.repeats}
    return facts


def _write(args: argparse.Namespace, report: dict[str, Any]) -> None:
    if args.json is not None:
        text = json.dumps(report, indent=2, ensure_ascii=False)
        args.json.write_text(f"{text}\n", encoding="utf-8")
    if args.page is not None:
        from anydraft.bench.page import page

        args.page.write_text(page(report), encoding="utf-8")


class _Say:
    """What happens while nothing is to be seen yet."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_at_s = time.monotonic()

    def line(self, what: str) -> None:
        elapsed_s = time.monotonic() - self._started_at_s
        self._console.print(f"{elapsed_s:5.0f} s  {what}", markup=False, soft_wrap=True)

    def row_begins(self, conditions: Conditions) -> None:
        what = f"{conditions.sessions} at once" if conditions.sessions > 1 else "one by one"
        self.line(f"round trip {conditions.round_trip_ms:g} ms, {what}")

    def heard(self, outcome: Outcome) -> None:
        from anydraft.bench.measures import gain

        value = gain([outcome])
        shown = "" if value is None else f"{value:.2f}x"
        self.line(f"  {outcome.task.category:16} {shown:>6}  {outcome.task.label}")
