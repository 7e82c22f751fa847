"""Command lines: what is wrong takes one line, which says what to write instead."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from anydraft.cli import main as cli
from anydraft.flags import (
    Parser,
    listen_address,
    number,
    positive_int,
    server_address,
    whole_number,
)
from draft_node import __main__ as draft
from verify_node import __main__ as verify

Capture = pytest.CaptureFixture[str]


def _anydraft(arguments: list[str]) -> argparse.Namespace:
    return cli._build_parser(arguments).parse_args(arguments)


def _draft(arguments: list[str]) -> argparse.Namespace:
    return draft.parser().parse_args(arguments)


def _verify(arguments: list[str]) -> argparse.Namespace:
    return verify.parser().parse_args(arguments)


PROGRAMS = {"anydraft": _anydraft, "anydraft-draft": _draft, "anydraft-verify": _verify}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("anydraft genrate", "did you mean generate?"),
        ("anydraft --verson", "no flag --verson, did you mean --version?"),
        ("anydraft zzz", "there is no 'zzz'. Choose from demo, bench, generate,"),
        ("anydraft models exprot x", "did you mean export?"),
        ("anydraft generate x --sever a:1", "no flag --sever, did you mean --server?"),
        ("anydraft generate x -server a:1", "no flag -server, did you mean --server?"),
        ("anydraft generate x --max_new_tokens=3", "did you mean --max-new-tokens?"),
        ("anydraft generate x --stat", "did you mean --stats?"),
        ("anydraft generate x --stop -END", "if that is a text, write --stop=-END"),
        ("anydraft generate a --server a:1 b", "'b' is one argument too many: put quotes"),
        ("anydraft generate x --max-new-tokens -1", "-1 is too small: give 1 or more, or leave"),
        ("anydraft generate x --max-new-tokens 9999999999", "too large: give at most"),
        ("anydraft generate x --top-k -1", "-1 is too small: give 0 or more, where 0 keeps all"),
        ("anydraft generate x --top-k many", "'many' is no whole number: give 0 or more"),
        ("anydraft generate x --top-p 0", "give a number above 0, 1 at most, where 1 keeps all"),
        ("anydraft generate x --min-p 2", "give a number from 0 to 1"),
        ("anydraft generate x --temperature nan", "nan is not finite: give a number from 0 to"),
        ("anydraft generate x --temperature -1", "give a number from 0 to 100"),
        ("anydraft generate x --repetition-penalty 0", "where 1 is none"),
        ("anydraft generate x --presence-penalty 3", "give a number from -2 to 2"),
        ("anydraft generate x --frequency-penalty inf", "give a number from -2 to 2"),
        ("anydraft generate x --seed -1", "-1 is too small: give 0 or more, or leave it out"),
        ("anydraft generate x --logprobs 21", "give at most 20"),
        (
            "anydraft generate x --timeout 0",
            "give a number above 0, or leave it out",
        ),
        ("anydraft generate x --timeout 1e300", "1e300 is too large: give at most"),
        ("anydraft generate x --timeout -1", "give a number above 0"),
        ("anydraft generate x --timeout nan", "nan is not finite"),
        ("anydraft generate x --stop=", "it is empty"),
        ("anydraft generate x --logit-bias 1=200", "beyond 100"),
        ("anydraft generate x --logit-bias=-1=2", "an id below 0"),
        ("anydraft generate x --logit-bias 1=nan", "beyond 100"),
        ("anydraft generate x --server host", "has no port: write it as HOST:PORT"),
        ("anydraft chat --server http://a:1", "is a URL or a path: write it as HOST:PORT"),
        ("anydraft demo --max-new-tokens 0", "give 1 or more"),
        ("anydraft demo --dtype float32", "Choose from auto, fp32, bf16, fp16"),
        ("anydraft-draft --model x --modle y", "did you mean --model?"),
        ("anydraft-draft --engine lokup", "did you mean lookup?"),
        (
            "anydraft-draft --model x --grace -1",
            "give a number, 0 or more",
        ),
        ("anydraft-draft --model x --grace nan", "nan is not finite"),
        ("anydraft-draft --model x --threads 0", "give 1 or more"),
        ("anydraft-draft --model x --max-draft 0", "argument --max-draft: 0 is too small"),
        ("anydraft-draft --model x --min-probability 2", "give a number from 0 to 1"),
        ("anydraft-draft --model x --verify nowhere", "HOST:PORT"),
        ("anydraft-draft --model x --listen http://x", "HOST:PORT"),
        ("anydraft-verify --modle x", "no flag --modle, did you mean --model?"),
        ("anydraft-verify --model x --grace inf", "inf is not finite: give a number, 0 or more"),
        ("anydraft-verify --model x --kv-tokens 1.5", "'1.5' is no whole number"),
        ("anydraft-verify --model x --max-sessions 0", "give 1 or more"),
        ("anydraft-verify --model x --max-step-tokens -3", "give 1 or more"),
        ("anydraft-verify --model x --max-context x", "'x' is no whole number"),
        ("anydraft-verify --model x --threads 0", "give 1 or more"),
        ("anydraft-verify --model x --dtype float32", "Choose from auto, fp32, bf16, fp16"),
        ("anydraft-verify --model x --listen 50051", "has no port"),
        ("anydraft-verify", "required: --model"),
    ],
)
def test_what_is_wrong_takes_one_line(line: str, shown: str, capsys: Capture) -> None:
    program, *arguments = line.split()
    with pytest.raises(SystemExit) as caught:
        PROGRAMS[program](arguments)
    assert caught.value.code == 2
    (printed,) = capsys.readouterr().err.splitlines()
    assert printed.startswith(f"{program}: ")
    assert shown in printed
    assert printed.endswith("--help)")


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("anydraft generate x --top-k 0", "top_k", 0),
        ("anydraft generate x --presence-penalty -1", "presence_penalty", -1.0),
        ("anydraft generate x --frequency-penalty -.5", "frequency_penalty", -0.5),
        ("anydraft generate x --stop=-END", "stop", ["-END"]),
        ("anydraft generate -- --x", "prompt", ["--x"]),
        ("anydraft generate -", "prompt", ["-"]),
        ("anydraft generate x --seed 18446744073709551615", "seed", 2**64 - 1),
        ("anydraft-draft --grace 0", "grace", 0.0),
        ("anydraft-draft --listen [::1]:0", "listen", "[::1]:0"),
        ("anydraft-verify --model x", "max_sessions", 64),
    ],
)
def test_what_is_right_is_taken(line: str, name: str, value: object) -> None:
    program, *arguments = line.split()
    assert getattr(PROGRAMS[program](arguments), name) == value


def test_a_prompt_with_spaces_that_begins_like_a_flag() -> None:
    assert _anydraft(["generate", "--prompt", "--really? yes"]).prompt_flag == "--really? yes"


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (positive_int, "0"),
        (positive_int, "4294967296"),
        (whole_number(0), "-1"),
        (whole_number(0, 20), "21"),
        (number(0, above=True), "0"),
        (number(0), "-1e-9"),
        (number(0, 1), "1.0001"),
        (number(0), "inf"),
        (number(0), "nan"),
        (number(-5), "x"),
        (server_address, "a:0"),
        (listen_address, "a"),
    ],
)
def test_out_of_range(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse(text)


COMMANDS = {
    "anydraft": [
        [],
        ["demo"],
        ["generate"],
        ["chat"],
        ["models"],
        ["models", "list"],
        ["models", "pull"],
        ["models", "export"],
        ["doctor"],
    ],
    "anydraft-draft": [[]],
    "anydraft-verify": [[]],
}
PAIRS = [(program, command) for program, commands in COMMANDS.items() for command in commands]


def _parser_of(program: str, command: list[str]) -> argparse.ArgumentParser:
    nodes = {"anydraft-draft": draft.parser, "anydraft-verify": verify.parser}
    parser = nodes[program]() if program in nodes else cli._build_parser(command)
    for word in command:
        (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
        parser = commands.choices[word]
    return parser


@pytest.mark.parametrize(("program", "command"), PAIRS)
def test_every_flag_says_what_it_is_and_its_default(program: str, command: list[str]) -> None:
    parser = _parser_of(program, command)
    assert isinstance(parser, Parser)
    formatter = parser._get_formatter()
    for action in parser._actions:
        if not action.option_strings:
            continue
        assert action.help, action
        text = formatter._expand_help(action)
        assert "None" not in text, action
        if action.nargs != 0 and action.default not in (None, [], argparse.SUPPRESS):
            assert f"(default: {action.default})" in text, action


@pytest.mark.parametrize(("program", "command"), PAIRS)
def test_numbers_have_a_range(program: str, command: list[str]) -> None:
    """`int` and `float` as a type take -1, nan and infinity, and their message names no fix."""
    for action in _parser_of(program, command)._actions:
        assert action.type not in (int, float), action
