"""`anydraft-draft`: serve answers that a verify node makes, helped by an assistant here."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from anydraft.errors import AnydraftError
from anydraft.rpc.address import parse_listen, parse_target
from anydraft.rpc.logs import add_log_level_flag, set_up_logging
from draft_node.lifecycle import DraftNode
from draft_node.load import ENGINES, DraftSettings, LoadedDrafter, load_drafter


def parser() -> argparse.ArgumentParser:
    defaults = DraftSettings(engine="lookup")
    p = argparse.ArgumentParser(
        prog="anydraft-draft",
        description="Serve answers of a verify node, faster, by drafting them with a small model.",
    )
    p.add_argument("--model", help="assistant: a name, Hub id or folder (anydraft models list)")
    p.add_argument(
        "--verify", default="127.0.0.1:50051", metavar="HOST:PORT", help="the verify node to dial"
    )
    p.add_argument(
        "--listen", default="127.0.0.1:50061", metavar="HOST:PORT", help="port 0 picks one"
    )
    p.add_argument("--engine", choices=ENGINES, default="onnx", help="what runs the assistant")
    p.add_argument("--precision", default=defaults.precision, help="of the ONNX file")
    p.add_argument("--threads", type=int, metavar="N", help="cores for drafting (default: all)")
    p.add_argument("--device-map", help='torch engine: "cpu", "cuda:0", "auto", ...')
    p.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that comes with the assistant (default: never)",
    )
    p.add_argument(
        "--max-draft",
        type=int,
        default=defaults.max_draft,
        metavar="N",
        help="pieces drafted ahead of the committed text, at most (default: %(default)s)",
    )
    p.add_argument(
        "--min-confidence",
        type=float,
        default=defaults.min_confidence,
        metavar="P",
        help="a piece less likely than this ends its draft (default: %(default)s)",
    )
    p.add_argument("--no-lookup", action="store_true", help="draft with the assistant only")
    p.add_argument("--grace", type=float, default=10.0, metavar="SECONDS", help="to finish on exit")
    add_log_level_flag(p)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    set_up_logging(args.log_level)
    try:
        # Before the model is fetched: a typing error should show at once.
        parse_target(args.verify)
        parse_listen(args.listen)
        settings = _settings(args)
        return asyncio.run(_serve(load_drafter(settings), settings, args))
    except AnydraftError as error:
        print(f"anydraft-draft: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130


def _settings(args: argparse.Namespace) -> DraftSettings:
    return DraftSettings(
        model=args.model,
        engine=args.engine,
        precision=args.precision,
        threads=args.threads,
        device_map=args.device_map,
        trust_remote_code=args.trust_remote_code,
        lookup=not args.no_lookup,
        max_draft=args.max_draft,
        min_confidence=args.min_confidence,
    )


async def _serve(loaded: LoadedDrafter, settings: DraftSettings, args: argparse.Namespace) -> int:
    node = DraftNode(loaded, args.verify, args.listen, max_draft=settings.max_draft)
    try:
        await node.start()
        await node.run_until_signal(args.grace)
    finally:
        await node.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
