"""What README and docs tell people to type is understood, and fits together."""

from __future__ import annotations

import tomllib

import pytest

from anydraft.cli import bench_flags
from tests.deploy.command_lines import _documented, _shell_lines, parse
from tests.deploy.files import ROOT

README = (ROOT / "README.md").read_text()
COMMANDS = [words for line in _shell_lines(README) if (words := _documented(line))]

BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()
MEASUREMENTS = [words for line in _shell_lines(BENCHMARKS) if (words := _documented(line))]


def _the(program: str, *more: str) -> list[str]:
    """The first: what a reader types who begins at the top."""
    return next(words for words in COMMANDS if words[: 1 + len(more)] == [program, *more])


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_are_understood(words: list[str]) -> None:
    assert parse(words)


@pytest.mark.parametrize("words", MEASUREMENTS, ids=" ".join)
def test_measurements_are_understood(words: list[str]) -> None:
    args = parse(words)
    bench_flags.check(args)
    assert args.answers is None or (ROOT / args.answers).is_file()


def test_the_nodes_of_the_readme_find_each_other() -> None:
    verify, draft = parse(_the("anydraft-verify")), parse(_the("anydraft-draft"))
    assert draft.verify == [verify.listen]
    assert parse(_the("anydraft", "chat")).server == draft.listen
    assert f'anydraft.Client("{draft.listen}")' in README
    assert f"ANYDRAFT_SERVER={draft.listen}" in README


def test_the_edge_runs_what_was_exported() -> None:
    exported = parse(_the("anydraft", "models", "export"))
    assert parse(_the("anydraft-draft")).model == f"./{exported.output}"


def test_every_extra_that_people_need_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in set(project["optional-dependencies"]) - {"dev", "cli"}:
        assert f"'anydraft[{extra}]'" in README
