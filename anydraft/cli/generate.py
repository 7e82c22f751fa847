"""`anydraft generate`: one prompt, one answer."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anydraft.cli.options import add_sampling_flags, add_server_flags, options_from, server_from
from anydraft.client import Client, GenerationResult, Stats
from anydraft.errors import InvalidRequestError
from anydraft.flags import whole_number
from anydraft.rpc.validation import MAX_LOGPROBS


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "generate",
        help="answer one prompt",
        description="Answer one prompt, exactly as it is written: from the command line, a file or "
        "stdin.",
    )
    parser.add_argument(
        "prompt", nargs="*", metavar="PROMPT", help="the prompt, in quotes; - reads it from stdin"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", dest="prompt_flag", metavar="TEXT", help="the same as PROMPT")
    source.add_argument(
        "--prompt-file", type=Path, metavar="FILE", help="a UTF-8 file that holds the prompt"
    )
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
        "--logprobs",
        type=whole_number(0, MAX_LOGPROBS),
        metavar="N",
        help="log-probabilities and N alternatives (--json)",
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    if args.logprobs is not None and not args.json:
        raise _misused("--logprobs shows in JSON only: add --json")
    server, prompt = server_from(args), _prompt(args)
    with Client(server, timeout=args.timeout) as client:
        options = options_from(args)
        options["logprobs"] = args.logprobs
        with client.generate(**prompt, **options) as stream:
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
    """`prompt` or `messages` for `Client.generate`. InvalidRequestError for none or several."""
    given = [args.prompt or None, args.prompt_flag, args.prompt_file, args.message]
    if sum(source is not None for source in given) > 1:
        raise _misused(f"{args.prompt[0]!r} is a second prompt: give one of them")
    if args.message is not None:
        if args.chat:
            raise _misused("--message is a chat already: leave --chat out, or use --prompt")
        return {"messages": args.message}
    text = _text(args)
    if not text:
        raise InvalidRequestError("the prompt is empty: give some text", reason="PROMPT_EMPTY")
    return {"messages": [{"role": "user", "content": text}]} if args.chat else {"prompt": text}


def _text(args: argparse.Namespace) -> str:
    if args.prompt_flag is not None:
        return str(args.prompt_flag)
    if args.prompt_file is not None:
        return _read(args.prompt_file)
    match args.prompt:
        case []:
            raise _misused("there is no prompt: give it in quotes, or by --prompt-file, or pipe -")
        case ["-"]:
            return _read(None)
        case [text]:
            return str(text)
        case words:
            quoted = shlex.quote(" ".join(words))
            raise _misused(f"the prompt is {len(words)} arguments: put quotes around it, {quoted}")


def _read(path: Path | None) -> str:
    """The text of a file, or of stdin for None. InvalidRequestError where there is none."""
    name = path or "stdin"
    if path is None and sys.stdin.isatty():
        print("type the prompt, then Ctrl-D on a line of its own", file=sys.stderr)
    try:
        raw = sys.stdin.buffer.read() if path is None else path.read_bytes()
        return raw.decode()
    except OSError as error:
        problem = f"cannot read {name} ({error.strerror}): give the name of a text file"
    except UnicodeDecodeError as error:
        problem = f"{name} is no UTF-8 text at byte {error.start}: convert it first"
    raise InvalidRequestError(problem, reason="PROMPT_UNREADABLE")


def _misused(problem: str) -> InvalidRequestError:
    return InvalidRequestError(problem, reason="INVALID_SETTINGS")


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
