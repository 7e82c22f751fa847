"""`anydraft`: picks the command and turns what goes wrong into one line and an exit code.

0 done, 1 failed, 2 bad input, 130 interrupted. Set ANYDRAFT_DEBUG to see tracebacks.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from anydraft.flags import EXIT_BAD_INPUT, Parser

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

# Each is a module of this package with `add_parser(subparsers)`, which sets `func`.
_COMMANDS = {
    "demo": "run both nodes here and compare with the target alone",
    "bench": "measure what drafting brings, with a real target or a simulated one",
    "generate": "answer one prompt",
    "chat": "talk with a model",
    "models": "list, download and convert models",
    "doctor": "check this machine, the installation and servers",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code, or raises SystemExit for bad arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _prepare_streams()
    try:
        args = _build_parser(arguments).parse_args(arguments)
        code = int(args.func(args))
        sys.stdout.flush()  # a pipe that broke should show here and not at exit
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout again at exit; what is left goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as exc:
        return _report(exc)


def _build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """Only the command that was asked for is imported, so that `--help` is quick."""
    asked = next((argument for argument in arguments if not argument.startswith("-")), None)
    parser = Parser(
        prog="anydraft",
        description="Run a big language model faster with any small model, losslessly.",
        epilog="The nodes are started by anydraft-verify and anydraft-draft.",
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in _COMMANDS.items():
        if name == asked:
            import_module(f"anydraft.cli.{name}").add_parser(commands)
        else:
            commands.add_parser(name, help=summary)
    return parser


class _PrintVersion(argparse.Action):
    """argparse's own wants the version beforehand, which costs reading the package's metadata."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from anydraft.version import VERSION

        print(f"anydraft {VERSION}")
        parser.exit()


def _prepare_streams() -> None:
    """A character that the terminal cannot show is no error, and neither is a closed stream."""
    nowhere = Path(os.devnull)
    if sys.stdin is None:
        sys.stdin = nowhere.open()
    if sys.stdout is None:
        sys.stdout = nowhere.open("w")
    if sys.stderr is None:
        sys.stderr = nowhere.open("w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _report(exc: Exception) -> int:
    from anydraft.errors import AnydraftError, InvalidRequestError

    if os.environ.get("ANYDRAFT_DEBUG"):
        raise exc
    if isinstance(exc, AnydraftError):
        print_error(exc)
        return EXIT_BAD_INPUT if isinstance(exc, InvalidRequestError) else EXIT_FAILED
    if isinstance(exc, OSError):
        where = exc.filename or "the output"
        print_error(f"{where}: {exc.strerror or exc}: check that it is there, and has room")
        return EXIT_FAILED
    reported = "set ANYDRAFT_DEBUG=1 to see where, and please report it"
    print_error(f"{type(exc).__name__}: {exc}: {reported}")
    return EXIT_FAILED


def print_error(message: object) -> None:
    """One line on stderr."""
    line = " ".join(str(message).split())
    print(f"anydraft: {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
