"""`python -m verify_node.simulated`: a verify node whose target only takes time. For benchmarks."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from anydraft.errors import AnydraftError
from anydraft.extras import needs_extra
from anydraft.flags import EXIT_BAD_INPUT, Parser, listen_address, number, positive_int
from anydraft.rpc.loading import end_process
from anydraft.rpc.logs import add_log_level_flag, set_up_logging
from verify_node.pool_flags import add_pool_flags, pool_of


def parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="simulated-verify",
        description="Serve recorded answers at the pace of a target that takes a set time a step.",
    )
    flag = p.add_argument
    flag("--model", required=True, metavar="NAME", help="the target whose tokenizer is taken")
    flag("--answers", required=True, type=Path, metavar="FILE", help="what it says")
    flag("--step-ms", required=True, type=number(0, above=True), metavar="MS", help="of one token")
    flag(
        "--slope",
        type=number(0),
        default=0.05,
        metavar="SHARE",
        help="how much longer a step over 16 more tokens is",
    )
    flag("--listen", type=listen_address, default="127.0.0.1:50051", metavar="HOST:PORT")
    flag("--max-sessions", type=positive_int, default=64, metavar="N", help="open at once")
    add_pool_flags(p)
    add_log_level_flag(p)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    set_up_logging(args.log_level)
    try:
        with needs_extra("verify"):
            return end_process(asyncio.run(_serve(args)))
    except AnydraftError as error:
        print(f"simulated-verify: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return 130


async def _serve(args: argparse.Namespace) -> int:
    from verify_node.lifecycle import VerifyNode
    from verify_node.simulated.load import SimulationOptions, load
    from verify_node.simulated.step_time import StepTime

    options = SimulationOptions(
        model=args.model,
        answers=args.answers,
        time=StepTime(args.step_ms, args.slope),
        max_sessions=args.max_sessions,
    )
    node = VerifyNode(args.listen, pool=pool_of(args))
    try:
        await node.start()
        await node.run_until_signal(partial(load, options), grace_s=0.0)
    finally:
        await node.stop()
    return 1 if node.failure is not None else 0


if __name__ == "__main__":
    sys.exit(main())
