"""The flags of a pool of drafters, for verify nodes of either kind."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from anydraft.flags import server_address
from anydraft.rpc.address import parse_target

if TYPE_CHECKING:
    from verify_node.drafter_pool import DrafterPool


def add_pool_flags(p: argparse.ArgumentParser) -> None:
    """See `pool_of`."""
    p.add_argument(
        "--drafters",
        type=server_address,
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="draft nodes that draft for apps which ask this node; several times, or a name with "
        "several addresses (default: none, apps ask a draft node for drafts)",
    )
    p.add_argument(
        "--same-machine",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether those use the same cores: both then take turns; auto: when all of them are "
        "loopback addresses",
    )


def pool_of(args: argparse.Namespace) -> DrafterPool | None:
    """What the flags of `add_pool_flags` ask for. Call it in the event loop of the node."""
    from verify_node.drafter_pool import DrafterPool

    if not args.drafters:
        return None
    in_turn = args.same_machine == "yes"
    if args.same_machine == "auto":
        in_turn = all(parse_target(address).is_loopback for address in args.drafters)
    return DrafterPool(args.drafters, in_turn=in_turn)
