"""`anydraft-verify`: serve a target."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anydraft.errors import AnydraftError
from anydraft.rpc.address import parse_listen
from anydraft.rpc.logs import add_log_level_flag, set_up_logging

if TYPE_CHECKING:
    from verify_node.load import LoadOptions


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="anydraft-verify",
        description="Serve a target model: verify drafts, and generate without them.",
    )
    p.add_argument("--model", required=True, help="Hub id, folder, GGUF file or registry name")
    p.add_argument("--name", help="what clients call the model (default: its own name)")
    p.add_argument(
        "--listen", default="127.0.0.1:50051", metavar="HOST:PORT", help="port 0 picks one"
    )
    p.add_argument("--dtype", default="auto", help="auto, fp32, bf16 or fp16 (auto: fp32 on a CPU)")
    p.add_argument("--device-map", help='as in transformers: "cpu", "cuda:0", "auto", ...')
    p.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that comes with the model (default: never)",
    )
    p.add_argument("--threads", type=_positive, help="CPU threads for the model")
    p.add_argument("--max-context", type=_positive, metavar="TOKENS", help="prompt plus answer")
    p.add_argument("--kv-tokens", type=_positive, metavar="TOKENS", help="KV cache of all sessions")
    p.add_argument("--max-sessions", type=_positive, default=64)
    p.add_argument("--max-step-tokens", type=_positive, default=512, help="new tokens in a forward")
    p.add_argument("--grace", type=float, default=10.0, metavar="SECONDS", help="to finish on exit")
    add_log_level_flag(p)
    return p


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not positive")
    return value


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
        max_sessions=args.max_sessions,
        max_step_tokens=args.max_step_tokens,
        threads=args.threads,
    )


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    set_up_logging(args.log_level)
    try:
        # Before the model is loaded: a typing error should show at once.
        parse_listen(args.listen)
        return asyncio.run(_serve(_options(args), args))
    except AnydraftError as error:
        print(f"anydraft-verify: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130


async def _serve(options: LoadOptions, args: argparse.Namespace) -> int:
    from verify_node.lifecycle import VerifyNode
    from verify_node.load import load

    node = VerifyNode(load(options), args.listen)
    try:
        await node.start()
        await node.run_until_signal(args.grace)
    finally:
        await node.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
