"""`anydraft generate`: one prompt, one answer."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anydraft.cli.options import add_sampling_flags, add_server_flags, options_from
from anydraft.client import Client, GenerationResult, Stats
from anydraft.errors import InvalidRequestError


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "generate",
        help="answer one prompt",
        description="Answer one prompt, from a flag, a file or stdin, exactly as it is written.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("stdin", nargs="?", choices=["-"], metavar="-", help="read it from stdin")
    source.add_argument("--prompt", metavar="TEXT")
    source.add_argument("--prompt-file", type=Path, metavar="FILE")
    source.add_argument(
        "--message",
        type=_message,
        action="append",
        metavar="ROLE=TEXT",
        help="a chat message, rendered with the model's own template; repeatable",
    )
    parser.add_argument("--chat", action="store_true", help="send the prompt as a user's message")
    add_server_flags(parser)
    add_sampling_flags(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="print the result as one JSON object")
    output.add_argument("--no-stream", action="store_true", help="print when all of it is there")
    output.add_argument("--stats", action="store_true", help="say on stderr what it took")
    output.add_argument(
        "--logprobs", type=int, metavar="N", help="log-probabilities and N alternatives (--json)"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    if args.logprobs is not None and not args.json:
        raise InvalidRequestError(
            "--logprobs shows in JSON only: add --json", reason="INVALID_SETTINGS"
        )
    with Client(args.server, timeout=args.timeout) as client:
        options = options_from(args)
        options["logprobs"] = args.logprobs
        with client.generate(**_prompt(args), **options) as stream:
            if not (args.json or args.no_stream):
                for event in stream:
                    print(event.text, end="", flush=True)
            result = stream.result()
    if args.json:
        print(json.dumps(_as_json(result, with_logprobs=args.logprobs is not None)))
    else:
        _end_text(result.text, is_printed=not args.no_stream)
    if args.stats:
        print(describe(result.stats), file=sys.stderr)
    return 0


def describe(stats: Stats) -> str:
    """What an answer took, in one line."""
    parts = [
        f"{stats.completion_tokens} tokens in {stats.total_s:.2f} s",
        f"{stats.tokens_per_second:.1f} tokens/s",
    ]
    if stats.time_to_first_text_s is not None:
        parts.append(f"first text after {stats.time_to_first_text_s:.2f} s")
    if stats.acceptance_rate is not None:
        parts.append(f"{stats.acceptance_rate:.0%} of {stats.drafted} draft tokens accepted")
    if stats.tokens_per_round is not None:
        parts.append(f"{stats.tokens_per_round:.2f} tokens per step of the target")
    return ", ".join(parts)


def _end_text(text: str, *, is_printed: bool) -> None:
    """A terminal's prompt belongs on a new line; a file or a pipe gets the answer and no more."""
    if not is_printed:
        print(text, end="")
    if sys.stdout.isatty() and not text.endswith("\n"):
        print()


def _prompt(args: argparse.Namespace) -> dict[str, Any]:
    """`prompt` or `messages` for `Client.generate`."""
    if args.message is not None:
        return {"messages": args.message}
    text = _text(args)
    return {"messages": [{"role": "user", "content": text}]} if args.chat else {"prompt": text}


def _text(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        return str(args.prompt)
    path: Path | None = args.prompt_file
    try:
        raw = sys.stdin.buffer.read() if path is None else path.read_bytes()
        return raw.decode()
    except OSError as exc:
        problem = f"cannot read {path} ({exc.strerror}): check the name"
    except UnicodeDecodeError as exc:
        problem = f"the prompt is no UTF-8 text at byte {exc.start}: convert it first"
    raise InvalidRequestError(problem, reason="PROMPT_UNREADABLE")


def _message(text: str) -> dict[str, str]:
    role, equals, content = text.partition("=")
    if not equals or not role:
        raise argparse.ArgumentTypeError(f"{text!r} has no role: write ROLE=TEXT, such as user=Hi")
    return {"role": role, "content": content}


def _as_json(result: GenerationResult, *, with_logprobs: bool) -> dict[str, Any]:
    fields = asdict(result)
    if not with_logprobs:
        del fields["logprobs"]
    fields["stats"] |= {
        "acceptance_rate": result.stats.acceptance_rate,
        "tokens_per_round": result.stats.tokens_per_round,
        "tokens_per_second": result.stats.tokens_per_second,
    }
    return fields
