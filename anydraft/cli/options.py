"""Flags that `generate` and `chat` share: which server, and how to sample."""

from __future__ import annotations

import argparse
import math
import os

from anydraft.client import GenerateOptions
from anydraft.errors import InvalidRequestError
from anydraft.flags import (
    MAX_UINT64,
    SERVER_VARIABLE,
    number,
    seconds,
    server_address,
    whole_number,
)
from anydraft.rpc.address import parse_target
from anydraft.rpc.validation import MAX_TEMPERATURE

_MAX_BIAS = 100


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        type=server_address,
        metavar="HOST:PORT",
        help=f"a draft node or a verify node (default: ${SERVER_VARIABLE})",
    )
    parser.add_argument("--model", metavar="NAME", help="refuse to be answered by another model")
    parser.add_argument(
        "--timeout",
        type=seconds(above=True, otherwise="or leave it out to wait without limit"),
        metavar="SECONDS",
        help="limit for a whole answer (default: none)",
    )


def server_from(args: argparse.Namespace) -> str:
    """The node to ask. Raises InvalidRequestError where neither the flag nor the variable says."""
    server = args.server or os.environ.get(SERVER_VARIABLE)
    if not server:
        raise InvalidRequestError(
            f"there is no node to ask: give --server HOST:PORT, or set {SERVER_VARIABLE}",
            reason="INVALID_SETTINGS",
        )
    try:
        parse_target(server)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{SERVER_VARIABLE}: {error}", reason=error.reason) from None
    return str(server)


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "sampling", "What is left out comes from the model's own generation_config."
    )
    flag = group.add_argument
    flag(
        "--max-new-tokens",
        type=whole_number(1, otherwise="or leave it out for the model's own limit"),
        metavar="N",
        help="longest answer",
    )
    flag(
        "--temperature",
        type=number(0, MAX_TEMPERATURE),
        metavar="T",
        help="0 always takes the likeliest token",
    )
    flag(
        "--top-k",
        type=whole_number(0, otherwise="where 0 keeps all tokens"),
        metavar="K",
        help="among the K likeliest tokens; 0: all",
    )
    flag(
        "--top-p",
        type=number(0, 1, above=True, otherwise="where 1 keeps all tokens"),
        metavar="P",
        help="among tokens that hold P of the probability",
    )
    flag(
        "--min-p",
        type=number(0, 1, otherwise="where 0 keeps all tokens"),
        metavar="P",
        help="leave out what is below P of the likeliest",
    )
    flag(
        "--repetition-penalty",
        type=number(0, above=True, otherwise="where 1 is none"),
        metavar="X",
        help="over prompt and answer; 1: none",
    )
    for kind in ("presence", "frequency"):
        flag(
            f"--{kind}-penalty",
            type=number(-2, 2, otherwise="where 0 is none"),
            metavar="X",
            help="over the answer, -2 to 2",
        )
    flag(
        "--logit-bias",
        type=_bias,
        action="append",
        metavar="ID=BIAS",
        help="added to a token's logit, -100 to 100; repeatable",
    )
    flag(
        "--seed",
        type=whole_number(0, MAX_UINT64, otherwise="or leave it out for a new one each time"),
        metavar="N",
        help="same seed, same answer",
    )
    flag("--stop", type=_stop, action="append", metavar="TEXT", help="end before TEXT; repeatable")
    flag("--ignore-eos", action="store_true", help="go on past the end of sequence")


def options_from(args: argparse.Namespace) -> GenerateOptions:
    """The flags as keyword arguments of `Client.generate`."""
    return GenerateOptions(
        max_new_tokens=args.max_new_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        logit_bias=dict(args.logit_bias) if args.logit_bias else None,
        seed=args.seed,
        stop=args.stop,
        ignore_eos=args.ignore_eos,
        model=args.model,
    )


def _bias(text: str) -> tuple[int, float]:
    token_id, equals, bias = text.partition("=")
    try:
        found = int(token_id), float(bias)
    except ValueError:
        problem = "no token id and number" if equals else "no ="
    else:
        if found[0] >= 0 and math.isfinite(found[1]) and abs(found[1]) <= _MAX_BIAS:
            return found
        problem = f"an id below 0, or a bias beyond {_MAX_BIAS}"
    raise argparse.ArgumentTypeError(f"{text!r} has {problem}: write ID=BIAS, such as 13=-2.5")


def _stop(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("it is empty: give the text to end before")
    return text
