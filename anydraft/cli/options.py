"""Flags that `generate` and `chat` share: which server, and how to sample."""

from __future__ import annotations

import argparse

from anydraft.client import GenerateOptions


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server", required=True, metavar="HOST:PORT", help="a draft node or a verify node"
    )
    parser.add_argument("--model", metavar="NAME", help="refuse to be answered by another model")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="limit for a whole answer")


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "sampling", "What is left out comes from the model's own generation_config."
    )
    flag = group.add_argument
    flag("--max-new-tokens", type=int, metavar="N", help="longest answer")
    flag("--temperature", type=float, metavar="T", help="0 always takes the likeliest token")
    flag("--top-k", type=int, metavar="K", help="among the K likeliest tokens; 0: all")
    flag("--top-p", type=float, metavar="P", help="among tokens that hold P of the probability")
    flag("--min-p", type=float, metavar="P", help="leave out what is below P of the likeliest")
    flag("--repetition-penalty", type=float, metavar="X", help="over prompt and answer; 1: none")
    flag("--presence-penalty", type=float, metavar="X", help="over the answer, -2 to 2")
    flag("--frequency-penalty", type=float, metavar="X", help="over the answer, -2 to 2")
    flag(
        "--logit-bias",
        type=_bias,
        action="append",
        metavar="ID=BIAS",
        help="added to a token's logit; repeatable",
    )
    flag("--seed", type=int, help="same seed, same answer")
    flag("--stop", action="append", metavar="TEXT", help="end before TEXT; repeatable")
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
        return int(token_id), float(bias)
    except ValueError:
        problem = "no token id" if equals else "no ="
        raise argparse.ArgumentTypeError(
            f"{text!r} has {problem}: write ID=BIAS, such as 13=-2.5"
        ) from None
