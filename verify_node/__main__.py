"""`anydraft-verify`: serve a target."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from anydraft.errors import AnydraftError
from anydraft.extras import needs_extra
from anydraft.flags import (
    DTYPES,
    EXIT_BAD_INPUT,
    MAX_UINT64,
    Parser,
    listen_address,
    positive_int,
    seconds,
    whole_number,
)
from anydraft.rpc.answer_table import add_session_ttl_flag
from anydraft.rpc.loading import end_process
from anydraft.rpc.logs import add_log_level_flag, set_up_logging
from verify_node.pool_flags import add_pool_flags, pool_of

if TYPE_CHECKING:
    from verify_node.load import LoadOptions

EXIT_TARGET_FAILED = 70
"""As sysexits' EX_SOFTWARE: a supervisor should start the node again."""


def parser() -> argparse.ArgumentParser:
    p = Parser(
        prog="anydraft-verify",
        description="Serve a target model: verify drafts, and generate without them.",
    )
    p.add_argument(
        "--model",
        required=True,
        metavar="NAME",
        help="a name, Hub id, folder or GGUF file (anydraft models list)",
    )
    p.add_argument("--name", help="what clients call the model (default: its own name)")
    p.add_argument(
        "--listen",
        type=listen_address,
        default="127.0.0.1:50051",
        metavar="HOST:PORT",
        help="port 0 picks one",
    )
    p.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help="precision; auto: fp32 on a CPU, else the checkpoint's (default: %(default)s)",
    )
    p.add_argument(
        "--device-map",
        metavar="DEVICE",
        help='as in transformers: "cpu", "cuda:0", "auto", ... (default: a GPU if there is one)',
    )
    p.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that comes with the model (default: never)",
    )
    p.add_argument(
        "--threads", type=positive_int, metavar="N", help="CPU threads for the model (default: all)"
    )
    p.add_argument(
        "--max-context",
        type=positive_int,
        metavar="TOKENS",
        help="prompt plus answer (default: the model's own limit)",
    )
    budget = p.add_mutually_exclusive_group()
    budget.add_argument(
        "--kv-tokens",
        type=positive_int,
        metavar="TOKENS",
        help="KV cache of all sessions (default: what half of the free memory holds)",
    )
    budget.add_argument(
        "--kv-bytes", type=whole_number(1, MAX_UINT64), metavar="BYTES", help="the same, as memory"
    )
    p.add_argument(
        "--no-prefix-cache",
        action="store_true",
        help="compute every prompt from its beginning, also where an earlier one began alike",
    )
    p.add_argument(
        "--max-sessions", type=positive_int, default=64, metavar="N", help="open at once"
    )
    p.add_argument(
        "--max-waiting",
        type=whole_number(0),
        default=64,
        metavar="N",
        help="further sessions that wait for a place; 0 refuses at once",
    )
    p.add_argument(
        "--max-wait-s",
        type=seconds(),
        default=30.0,
        metavar="SECONDS",
        help="for which each of them waits",
    )
    p.add_argument(
        "--max-step-tokens",
        type=positive_int,
        default=512,
        metavar="TOKENS",
        help="new tokens in a forward",
    )
    add_session_ttl_flag(p)
    p.add_argument(
        "--grace",
        type=seconds(),
        default=10.0,
        metavar="SECONDS",
        help="to finish on exit",
    )
    add_pool_flags(p)
    add_log_level_flag(p)
    return p


def _options(args: argparse.Namespace) -> LoadOptions:
    from verify_node.load import LoadOptions

    return LoadOptions(
        model=args.model,
        name=args.name,
        dtype=args.dtype,
        device_map=args.device_map,
        trust_remote_code=args.trust_remote_code,
        max_context_tokens=args.max_context,
        kv_tokens=args.kv_tokens,
        kv_bytes=args.kv_bytes,
        keeps_prefixes=not args.no_prefix_cache,
        max_sessions=args.max_sessions,
        max_waiting=args.max_waiting,
        max_wait_s=args.max_wait_s,
        max_step_tokens=args.max_step_tokens,
        threads=args.threads,
    )


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    set_up_logging(args.log_level)
    try:
        with needs_extra("verify"):
            return end_process(asyncio.run(_serve(_options(args), args)))
    except AnydraftError as error:
        print(f"anydraft-verify: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return 130


async def _serve(options: LoadOptions, args: argparse.Namespace) -> int:
    from verify_node.lifecycle import VerifyNode
    from verify_node.load import load

    node = VerifyNode(args.listen, pool=pool_of(args), session_ttl_s=args.session_ttl)
    try:
        # The address is had before the model is loaded, which may take minutes.
        await node.start()
        await node.run_until_signal(partial(load, options), args.grace)
    finally:
        await node.stop()
    return EXIT_TARGET_FAILED if node.failure is not None else 0


if __name__ == "__main__":
    sys.exit(main())
