"""Flags that `demo` and `bench` share: which pair of models answers, and for how long."""

from __future__ import annotations

import argparse

from anydraft.flags import DTYPES, positive_int

ASSISTANT = "smollm2-135m-instruct"


def add_pair_flags(
    parser: argparse._ActionsContainer, target: str, *, assistant_help: str = "the small one"
) -> None:
    """`target`: the default. The assistant's is ASSISTANT."""
    flag = parser.add_argument
    flag("--target", default=target, metavar="NAME", help="the large model")
    flag("--assistant", default=ASSISTANT, metavar="NAME", help=assistant_help)
    flag(
        "--dtype",
        default="auto",
        choices=DTYPES,
        help="precision of the target; auto: fp32 on a CPU (default: %(default)s)",
    )


def add_length_flag(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--max-new-tokens", type=positive_int, default=96, metavar="N", help="longest answer"
    )
