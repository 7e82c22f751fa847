"""What the three programs' command lines share: one line for what is wrong, which names the fix.

`Parser` is argparse's own with three differences: an error takes one line, a misspelt flag or
command is answered with the nearest that there is, and `--help` shows the defaults. The functions
below it make the `type` of a flag that has a range.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

EXIT_BAD_INPUT = 2
SERVER_VARIABLE = "ANYDRAFT_SERVER"
"""Environment variable: which node the commands of a client ask."""

DTYPES = ("auto", "fp32", "bf16", "fp16")
"""Precisions that a target may be asked to have."""

MAX_UINT32 = 2**32 - 1
MAX_UINT64 = 2**64 - 1


class DefaultsHelp(argparse.HelpFormatter):
    """Ends a flag's help with its default, where it has one and does not say it itself."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        text = action.help
        is_value = action.option_strings and action.nargs != 0
        if not text or not is_value or action.default in (None, [], argparse.SUPPRESS):
            return text
        return text if "(default:" in text else f"{text} (default: %(default)s)"


class Parser(argparse.ArgumentParser):
    """Flags are written whole: an abbreviation would change its meaning when a flag is added."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", DefaultsHelp)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """One line on stderr, and exit with 2."""
        program = self.prog.split()[0]
        self.exit(EXIT_BAD_INPUT, f"{program}: {message} (see {self.prog} --help)\n")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuses what it does not know, also for a command of this parser, which argparse asks
        this way. A misspelt flag comes first: without it, others may look as if they were missing.
        """
        arguments = list(sys.argv[1:] if args is None else args)
        self._refuse_unknown_flags(arguments)
        found, left = super().parse_known_args(arguments, namespace)
        if left:
            self.error(f"{left[0]!r} is one argument too many: put quotes around text with spaces")
        return found, left

    def _refuse_unknown_flags(self, arguments: Sequence[str]) -> None:
        known = self._option_string_actions
        before = ""
        for argument in arguments:
            is_flag = _looks_like_a_flag(argument)
            if argument == "--" or (self._subparsers and not is_flag):
                return  # values from here on, or another parser's flags
            flag = argument.partition("=")[0]
            if is_flag and flag not in known:
                self.error(f"there is no flag {flag}{self._meant_by(flag, argument, before)}")
            before = argument

    def _meant_by(self, flag: str, argument: str, before: str) -> str:
        known = self._option_string_actions
        if near := _nearest(f"--{flag.lstrip('-')}", known):
            return near
        takes_text = before in known and known[before].nargs != 0
        return f": if that is a text, write {before}={argument}" if takes_text else ""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        near, listed = _nearest(str(value), choices), ", ".join(choices)
        problem = f"there is no {value!r}{near or '.'} Choose from {listed}"
        raise argparse.ArgumentError(action, problem)


def _looks_like_a_flag(argument: str) -> bool:
    """As argparse sees it: a number is a value, and so is what has a space in it."""
    if len(argument) < 2 or argument[0] != "-" or argument == "--" or " " in argument:
        return False
    return not re.fullmatch(r"-\d+|-\d*\.\d+", argument)


def _nearest(word: str, known: Iterable[str]) -> str:
    """`, did you mean X?` for the nearest of `known`; nothing where none is near."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return f", did you mean {found[0]}?" if found else ""


def whole_number(
    low: int, high: int = MAX_UINT32, *, otherwise: str | None = None
) -> Callable[[str], int]:
    """The type of a flag that takes whole numbers from `low` to `high`. `otherwise` ends the
    message for what is below: what people mean by such a number, and how it is written here."""
    hint = f", {otherwise}" if otherwise else ""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise _bad(f"{text!r} is no whole number: give {low} or more{hint}") from None
        if value < low:
            raise _bad(f"{value} is too small: give {low} or more{hint}")
        if value > high:
            raise _bad(f"{value} is too large: give at most {high}")
        return value

    return parse


def number(
    low: float, high: float = math.inf, *, above: bool = False, otherwise: str | None = None
) -> Callable[[str], float]:
    """The type of a flag that takes finite numbers from `low` (or, with `above`, above it) to
    `high`; `otherwise` as in `whole_number`."""
    hint = f", {otherwise}" if otherwise else ""
    if high < math.inf:
        wanted = f"give a number above {low:g}, {high:g} at most" if above else ""
        wanted = wanted or f"give a number from {low:g} to {high:g}"
    elif low > -math.inf:
        wanted = f"give a number above {low:g}" if above else f"give a number, {low:g} or more"
    else:
        wanted = "give a finite number"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise _bad(f"{text!r} is no number: {wanted}{hint}") from None
        if not math.isfinite(value):
            raise _bad(f"{text} is not finite: {wanted}{hint}")
        if not low <= value <= high or (above and value == low):
            raise _bad(f"{text} is out of range: {wanted}{hint}")
        return value

    return parse


positive_int = whole_number(1)
"""The type of a flag that counts something."""

_MAX_SECONDS = 10**8
"""Three years; gRPC counts nanoseconds in 64 bits."""


def seconds(*, above: bool = False, otherwise: str | None = None) -> Callable[[str], float]:
    """The type of a flag that limits a time: 0 or more (or, with `above`, above 0), and finite."""
    parse_number = number(0, above=above, otherwise=otherwise)

    def parse(text: str) -> float:
        value = parse_number(text)
        if value > _MAX_SECONDS:
            raise _bad(f"{text} is too large: give at most {_MAX_SECONDS} seconds")
        return value

    return parse


def server_address(text: str) -> str:
    """HOST:PORT of a node to ask, as it was written."""
    return _address(text, is_listener=False)


def listen_address(text: str) -> str:
    """HOST:PORT to listen on, as it was written; port 0 takes a free one."""
    return _address(text, is_listener=True)


def _address(text: str, *, is_listener: bool) -> str:
    from anydraft.errors import InvalidRequestError
    from anydraft.rpc.address import parse_listen, parse_target

    try:
        (parse_listen if is_listener else parse_target)(text)
    except InvalidRequestError as error:
        raise _bad(str(error)) from None
    return text


def _bad(problem: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(problem)
