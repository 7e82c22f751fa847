"""`anydraft-draft`: serve answers that a verify node makes, helped by an assistant here."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anydraft.errors import AnydraftError
from anydraft.extras import needs_extra
from anydraft.flags import MAX_SECONDS, Parser, listen_address, number, positive_int, server_address
from anydraft.rpc.logs import add_log_level_flag, set_up_logging

if TYPE_CHECKING:
    from draft_node.load import DraftSettings, LoadedDrafter


def parser() -> argparse.ArgumentParser:
    from draft_node.load import ENGINES, DraftSettings

    defaults = DraftSettings(engine="lookup")
    p = Parser(
        prog="anydraft-draft",
        description="Serve answers of a verify node, faster, by drafting them with a small model.",
    )
    p.add_argument(
        "--model",
        metavar="NAME",
        help="assistant: a name, Hub id or folder (anydraft models list)",
    )
    p.add_argument(
        "--verify",
        type=server_address,
        default="127.0.0.1:50051",
        metavar="HOST:PORT",
        help="the verify node to dial",
    )
    p.add_argument(
        "--listen",
        type=listen_address,
        default="127.0.0.1:50061",
        metavar="HOST:PORT",
        help="port 0 picks one",
    )
    p.add_argument("--engine", choices=ENGINES, default="onnx", help="what runs the assistant")
    p.add_argument(
        "--precision",
        choices=("int4", "int8", "fp32"),
        default=defaults.precision,
        help="of the ONNX file",
    )
    p.add_argument(
        "--threads", type=positive_int, metavar="N", help="cores for drafting (default: all)"
    )
    p.add_argument(
        "--device-map", metavar="DEVICE", help='torch engine: "cpu", "cuda:0", "auto", ...'
    )
    p.add_argument(
        "--max-draft",
        type=positive_int,
        default=defaults.max_draft,
        metavar="N",
        help="pieces drafted ahead of the committed text, at most",
    )
    p.add_argument(
        "--min-confidence",
        type=number(0, 1),
        default=defaults.min_confidence,
        metavar="P",
        help="a piece less likely than this ends its draft",
    )
    p.add_argument("--no-lookup", action="store_true", help="draft with the assistant only")
    p.add_argument(
        "--grace",
        type=number(0, MAX_SECONDS),
        default=10.0,
        metavar="SECONDS",
        help="to finish on exit",
    )
    add_log_level_flag(p)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    try:
        with needs_extra("draft"):
            args = parser().parse_args(argv)
            set_up_logging(args.log_level)
            from draft_node.load import load_drafter

            settings = _settings(args)
            # Outside of the event loop, which would hear Ctrl-C only after it.
            return asyncio.run(_serve(load_drafter(settings), settings, args))
    except AnydraftError as error:
        print(f"anydraft-draft: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130


def _settings(args: argparse.Namespace) -> DraftSettings:
    from draft_node.load import DraftSettings

    return DraftSettings(
        model=args.model,
        engine=args.engine,
        precision=args.precision,
        threads=args.threads,
        device_map=args.device_map,
        lookup=not args.no_lookup,
        max_draft=args.max_draft,
        min_confidence=args.min_confidence,
    )


async def _serve(loaded: LoadedDrafter, settings: DraftSettings, args: argparse.Namespace) -> int:
    from draft_node.lifecycle import DraftNode

    node = DraftNode(loaded, args.verify, args.listen, max_draft=settings.max_draft)
    try:
        await node.start()
        await node.run_until_signal(args.grace)
    finally:
        await node.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
