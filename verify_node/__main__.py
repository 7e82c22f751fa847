"""`anydraft-verify`: serve a target."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anydraft.errors import AnydraftError
from anydraft.extras import needs_extra
from anydraft.flags import Parser, listen_address, positive_int, seconds
from anydraft.rpc.logs import add_log_level_flag, set_up_logging

if TYPE_CHECKING:
    from verify_node.load import LoadOptions
    from verify_node.served_model import ServedModel


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
        choices=("auto", "fp32", "bf16", "fp16"),
        default="auto",
        help="precision; auto: fp32 on a CPU, else the checkpoint's (default: %(default)s)",
    )
    p.add_argument(
        "--device-map",
        metavar="DEVICE",
        help='as in transformers: "cpu", "cuda:0", "auto", ... (default: a GPU if there is one)',
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
    p.add_argument(
        "--kv-tokens",
        type=positive_int,
        metavar="TOKENS",
        help="KV cache of all sessions (default: what half of the free memory holds)",
    )
    p.add_argument(
        "--max-sessions", type=positive_int, default=64, metavar="N", help="open at once"
    )
    p.add_argument(
        "--max-step-tokens",
        type=positive_int,
        default=512,
        metavar="TOKENS",
        help="new tokens in a forward",
    )
    p.add_argument(
        "--grace",
        type=seconds(),
        default=10.0,
        metavar="SECONDS",
        help="to finish on exit",
    )
    add_log_level_flag(p)
    return p


def _options(args: argparse.Namespace) -> LoadOptions:
    from verify_node.load import LoadOptions

    return LoadOptions(
        model=args.model,
        name=args.name,
        dtype=args.dtype,
        device_map=args.device_map,
        max_context_tokens=args.max_context,
        kv_tokens=args.kv_tokens,
        max_sessions=args.max_sessions,
        max_step_tokens=args.max_step_tokens,
        threads=args.threads,
    )


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    set_up_logging(args.log_level)
    try:
        with needs_extra("verify"):
            from verify_node.load import load

            # Outside of the event loop, which would hear Ctrl-C only after it.
            return asyncio.run(_serve(load(_options(args)), args))
    except AnydraftError as error:
        print(f"anydraft-verify: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130


async def _serve(model: ServedModel, args: argparse.Namespace) -> int:
    from verify_node.lifecycle import VerifyNode

    node = VerifyNode(model, args.listen)
    try:
        await node.start()
        await node.run_until_signal(args.grace)
    finally:
        await node.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
