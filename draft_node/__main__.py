"""`anydraft-draft`: serve answers that a verify node makes, helped by an assistant here."""

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
    EXIT_BAD_INPUT,
    Parser,
    listen_address,
    number,
    positive_int,
    seconds,
    server_address,
    whole_number,
)
from anydraft.rpc.address import parse_target
from anydraft.rpc.answer_table import add_session_ttl_flag
from anydraft.rpc.loading import end_process
from anydraft.rpc.logs import add_log_level_flag, set_up_logging

if TYPE_CHECKING:
    from draft_node.load import DraftSettings


def parser() -> argparse.ArgumentParser:
    from draft_node.failover import RECONNECT_S
    from draft_node.load import ENGINES, MIN_CONTEXT_TOKENS, DraftSettings
    from draft_node.places import DEFAULT_MAX_SESSIONS

    defaults = DraftSettings(engine="lookup")
    p = Parser(
        prog="anydraft-draft",
        description="Serve answers of a verify node, faster, by drafting them with a small model.",
    )
    flag = p.add_argument
    flag("--model", help="assistant: a name, Hub id or folder (anydraft models list)")
    flag(
        "--verify",
        type=server_address,
        action="append",
        metavar="HOST:PORT",
        help="a verify node that answers (default: none; verify nodes may dial this one). Of "
        "several, or of a name with several addresses, others go on when one is lost",
    )
    flag(
        "--reconnect",
        type=seconds(),
        default=RECONNECT_S,
        metavar="SECONDS",
        help="for an answer to find a verify node that goes on with it",
    )
    flag(
        "--listen",
        type=listen_address,
        default="127.0.0.1:50061",
        metavar="HOST:PORT",
        help="port 0 picks one",
    )
    flag("--engine", choices=ENGINES, default="onnx", help="what runs the assistant")
    flag("--precision", default=defaults.precision, help="of the ONNX file: int4, int8 or fp32")
    flag("--threads", type=positive_int, metavar="N", help="cores for drafting (default: all)")
    flag(
        "--device-map",
        help='torch engine: "cpu", "cuda:0", "auto", ... (default: a GPU if there is one)',
    )
    flag(
        "--max-draft",
        type=positive_int,
        default=defaults.max_draft,
        metavar="N",
        help="pieces drafted ahead of the committed text, at most",
    )
    flag(
        "--min-probability",
        type=number(0, 1, otherwise="where 0 drafts on whatever comes"),
        default=defaults.min_probability,
        metavar="P",
        help="what is less likely than this to follow the committed text is not drafted",
    )
    flag(
        "--max-context",
        type=whole_number(MIN_CONTEXT_TOKENS),
        default=defaults.max_context_tokens,
        metavar="TOKENS",
        help="of the assistant: how much of a text it sees, which costs memory in each session",
    )
    flag(
        "--trust-remote-code",
        action="store_true",
        help="run code that comes with the assistant (default: never)",
    )
    flag(
        "--same-machine",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether the verify node uses the same cores: the assistant then reads a prompt after "
        "it, not beside it; auto: when --verify is a loopback address. Verify nodes that dial this "
        "one say so themselves",
    )
    flag(
        "--max-sessions",
        type=positive_int,
        default=DEFAULT_MAX_SESSIONS,
        metavar="N",
        help="that are drafted at once, each with a KV cache of up to --max-context tokens",
    )
    flag(
        "--prefix-sessions",
        type=whole_number(0, otherwise="where 0 keeps nothing"),
        default=defaults.prefix_sessions,
        metavar="N",
        help="whose KV cache is kept when they end: a chat's next turn reads only what is new",
    )
    flag("--no-lookup", action="store_true", help="draft with the assistant only")
    flag(
        "--no-memory",
        action="store_true",
        help="search no earlier answers (default: the newest 64 KiB, kept in this process only)",
    )
    flag(
        "--lookup-meanwhile",
        action="store_true",
        help="be ready at once, with prompt lookup, while the assistant is fetched and loaded; go "
        "on with it if that fails",
    )
    add_session_ttl_flag(p)
    flag(
        "--grace",
        type=seconds(),
        default=10.0,
        metavar="SECONDS",
        help="for open answers when the node is told to stop",
    )
    flag("unexpected", nargs="*", help=argparse.SUPPRESS)
    add_log_level_flag(p)
    return p


def main(argv: Sequence[str] | None = None) -> int:
    try:
        with needs_extra("draft"):
            return _run(argv)
    except AnydraftError as error:
        print(f"anydraft-draft: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return 130


def _run(argv: Sequence[str] | None) -> int:
    commands = parser()
    args = commands.parse_args(argv)
    if args.unexpected:
        word = args.unexpected[0]
        commands.error(f"{word!r} belongs to no flag: the assistant is given as --model {word}")
    set_up_logging(args.log_level)
    return end_process(asyncio.run(_serve(settings_of(args), args)))


def settings_of(args: argparse.Namespace) -> DraftSettings:
    """What flags of `parser` ask for."""
    from draft_node.load import DraftSettings

    return DraftSettings(
        model=args.model,
        engine=args.engine,
        precision=args.precision,
        threads=args.threads,
        device_map=args.device_map,
        trust_remote_code=args.trust_remote_code,
        shares_machine=_shares_machine(args),
        lookup=not args.no_lookup,
        memory=not args.no_memory,
        lookup_meanwhile=args.lookup_meanwhile,
        max_draft=args.max_draft,
        min_probability=args.min_probability,
        max_context_tokens=args.max_context,
        prefix_sessions=args.prefix_sessions,
    )


def _shares_machine(args: argparse.Namespace) -> bool:
    if args.same_machine == "auto":
        return bool(args.verify) and all(parse_target(a).is_loopback for a in args.verify)
    return bool(args.same_machine == "yes")


async def _serve(settings: DraftSettings, args: argparse.Namespace) -> int:
    from draft_node.lifecycle import DraftNode
    from draft_node.load import load_drafter, load_lookup

    node = DraftNode(
        args.verify,
        args.listen,
        max_draft=settings.max_draft,
        max_sessions=args.max_sessions,
        reconnect_s=args.reconnect,
        session_ttl_s=args.session_ttl,
    )
    try:
        # Before the assistant is fetched: a port that is taken should show at once.
        await node.start()
        meanwhile = load_lookup(settings) if settings.lookup_meanwhile else None
        load = partial(load_drafter, settings)
        await node.run_until_signal(load, args.grace, meanwhile=meanwhile)
    finally:
        await node.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
