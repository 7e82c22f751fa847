"""The flags of `anydraft bench`, and what they mean together."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from anydraft.bench.plan import RANDOM, Pair, Step, Sweep
from anydraft.bench.tasks import SUITES
from anydraft.cli.pair_flags import add_length_flag, add_pair_flags
from anydraft.errors import InvalidRequestError
from anydraft.flags import MAX_UINT64, number, positive_int, server_address, whole_number
from anydraft.machine import available_cores
from anydraft.rpc.validation import MAX_TEMPERATURE

TARGET = "qwen2.5-coder-1.5b-instruct"

_T = TypeVar("_T")


def add_flags(p: argparse.ArgumentParser) -> None:
    _add_models(p)
    _add_questions(p)
    _add_conditions(p)
    _add_simulation(p)
    _add_outputs(p)


def _add_models(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("who answers")
    said = f'the small one, or "{RANDOM}": one that is of no use, and takes its time'
    add_pair_flags(g, TARGET, assistant_help=said)
    g.add_argument(
        "--verify",
        type=server_address,
        metavar="HOST:PORT",
        help="a verify node that runs already, elsewhere perhaps, instead of one here",
    )
    g.add_argument(
        "--threads",
        type=positive_int,
        default=max(available_cores() // 2, 1),
        metavar="N",
        help="of a draft node",
    )
    g.add_argument(
        "--target-threads", type=positive_int, metavar="N", help="of the target (default: all)"
    )
    g.add_argument("--target-cores", type=cores, metavar="LIST", help="keep the target to: 0,2-3")
    g.add_argument("--assistant-cores", type=cores, metavar="LIST", help="keep draft nodes to")
    g.add_argument(
        "--peers",
        choices=("transformers",),
        help="also measure `generate`, alone and with transformers' own assisted generation",
    )


def _add_questions(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("what is asked")
    g.add_argument(
        "--suite",
        metavar="NAME",
        help=f"{', '.join(SUITES)}, or a file with one JSON object a line, with `prompt` and "
        "`category` (default: spec-bench; of recorded answers, all)",
    )
    g.add_argument("--prompts", type=positive_int, metavar="N", help="of each category, at most")
    add_length_flag(g)
    g.add_argument(
        "--temperature",
        type=number(0, MAX_TEMPERATURE),
        default=0.0,
        metavar="T",
        help="0 is greedy",
    )
    g.add_argument(
        "--seed", type=whole_number(0, MAX_UINT64), default=0, metavar="S", help="of the draws"
    )
    g.add_argument(
        "--memory",
        action="store_true",
        help="let draft nodes search earlier answers, which know every prompt that is repeated",
    )
    g.add_argument("--repeats", type=positive_int, default=1, metavar="N", help="of every prompt")


def _add_conditions(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("under which conditions (LIST: several values with commas)")
    g.add_argument(
        "--round-trip",
        type=listed(number(0)),
        default="0",
        metavar="MS",
        help="LIST: time that the network adds, to the assistant and to whoever asks",
    )
    g.add_argument(
        "--sessions",
        type=listed(positive_int),
        default="1",
        metavar="N",
        help="LIST: prompts that are answered at once",
    )
    g.add_argument(
        "--edges", action="store_true", help="a draft node for each session, not one for all"
    )


def _add_simulation(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("with a simulated target")
    g.add_argument(
        "--simulate",
        action="store_true",
        help="a target that says recorded answers, takes a set time a step and uses no core",
    )
    g.add_argument(
        "--step-ms",
        type=listed(number(0, above=True)),
        metavar="MS",
        help="LIST: its step over one token (default: 30)",
    )
    g.add_argument(
        "--slope",
        type=listed(number(0)),
        metavar="SHARE",
        help="LIST: how much longer a step over 16 more tokens is (default: 0.05)",
    )
    g.add_argument(
        "--piece-ms",
        type=listed(number(0, above=True)),
        metavar="MS",
        help="LIST: simulate the assistant, too: its choices recorded, a pass this long",
    )
    g.add_argument(
        "--answers", type=Path, metavar="FILE", help="recorded answers, as --record makes them"
    )
    g.add_argument(
        "--choices",
        type=Path,
        metavar="FILE",
        help="the simulated assistant's memory (default: in the cache)",
    )


def _add_outputs(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("what becomes of it")
    g.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    g.add_argument("--page", type=Path, metavar="FILE", help="write a page with plots there")
    g.add_argument(
        "--record",
        type=Path,
        metavar="FILE",
        help="measure nothing: write what the target alone answers to --suite there",
    )


def listed(parse: Callable[[str], _T]) -> Callable[[str], tuple[_T, ...]]:
    """The type of a flag that takes several values with commas between them."""

    def parse_all(text: str) -> tuple[_T, ...]:
        parts = [part.strip() for part in text.split(",")]
        if "" in parts:
            raise argparse.ArgumentTypeError(
                f"{text!r} holds an empty value: write values with single commas, such as 0,20,60"
            )
        return tuple(dict.fromkeys(parse(part) for part in parts))

    return parse_all


def cores(text: str) -> tuple[int, ...]:
    """The type of a flag that takes cores: numbers and ranges, such as 0,2-3."""
    wrong = argparse.ArgumentTypeError(f"{text!r} names no cores: write numbers such as 0,2-3")
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise wrong
        found.update(range(int(first), int(last if dash else first) + 1))
    if not found:
        raise wrong
    return tuple(sorted(found))


def pair_of(args: argparse.Namespace) -> Pair:
    return Pair(
        target=args.target,
        assistant=args.assistant,
        dtype=args.dtype,
        threads=args.threads,
        target_threads=args.target_threads,
        target_cores=args.target_cores,
        assistant_cores=args.assistant_cores,
        verify_address=args.verify,
        remembers=args.memory,
    )


def sweep_of(args: argparse.Namespace) -> Sweep:
    steps: Sequence[Step | None] = (None,)
    if args.simulate:
        slopes = args.slope or (0.05,)
        steps = [Step(step_ms, slope) for step_ms in args.step_ms or (30.0,) for slope in slopes]
    return Sweep(steps, args.piece_ms or (None,), args.round_trip, args.sessions, args.edges)


def check(args: argparse.Namespace) -> None:
    """Raises InvalidRequestError for flags that do not go together, naming what to change."""
    _check_simulation(args)
    _check_cores(args)
    if args.verify is not None:
        for flag in ("target_threads", "target_cores"):
            if getattr(args, flag) is not None:
                raise _invalid(
                    f"{_flag(flag)} is for a target that is started here: drop it, or --verify"
                )
    if args.peers and (args.simulate or max(args.sessions) > 1):
        raise _invalid(
            "--peers takes a real target and one session: drop --simulate and --sessions"
        )
    if args.peers and args.temperature > 0:
        raise _invalid("--peers compares greedy answers: drop --temperature")
    if args.peers and args.assistant == RANDOM:
        raise _invalid(f"--peers needs an assistant that it can load: not {RANDOM}")
    for path in (args.json, args.page, args.record):
        _check_writable(path)


def _check_simulation(args: argparse.Namespace) -> None:
    for flag in ("step_ms", "slope", "piece_ms", "answers", "choices"):
        if getattr(args, flag) is not None and not args.simulate:
            raise _invalid(f"{_flag(flag)} does nothing without --simulate: add that, or drop it")
    if not args.simulate:
        return
    if args.answers is None:
        raise _invalid(
            "--simulate needs recorded answers: name a file with --answers, such as one that "
            "anydraft bench --record FILE has made"
        )
    if args.record is not None:
        raise _invalid("--record needs a real target: drop --simulate")
    if args.verify is not None:
        raise _invalid("--verify needs a real target: drop --simulate")
    if args.suite is not None and args.suite not in SUITES:
        raise _invalid(
            f"--simulate asks what was recorded: of --suite {', '.join(SUITES)}, or of all"
        )
    if args.temperature:
        raise _invalid("--simulate samples as was recorded: drop --temperature")


def _check_cores(args: argparse.Namespace) -> None:
    import os

    for flag in ("target_cores", "assistant_cores"):
        wanted = getattr(args, flag)
        if wanted is None:
            continue
        if not hasattr(os, "sched_setaffinity"):
            raise _invalid(f"{_flag(flag)} works on Linux only: drop it")
        if missing := sorted(set(wanted) - os.sched_getaffinity(0)):
            usable = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            raise _invalid(f"{_flag(flag)}: there is no core {missing[0]} here: choose of {usable}")


def _check_writable(path: Path | None) -> None:
    """Before minutes of work are spent on it."""
    import os

    if path is None:
        return
    there = path if path.exists() else path.absolute().parent
    if path.is_dir() or not os.access(there, os.W_OK):
        raise _invalid(f"{path} cannot be written: name a file in a folder that you may write to")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _invalid(problem: str) -> InvalidRequestError:
    return InvalidRequestError(problem, reason="INVALID_SETTINGS")
