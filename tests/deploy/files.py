"""The files under test, and readers of their formats, as small as these files need."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = ("draft.Dockerfile", "verify.Dockerfile")

_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?P<default>:-[^}]*)?\}")


@dataclass(frozen=True)
class Instruction:
    name: str
    flags: dict[str, str]
    value: str

    def exec_form(self) -> list[str]:
        """The words of a JSON array; raises ValueError for a line that a shell would read."""
        words = json.loads(self.value)
        if not (isinstance(words, list) and all(isinstance(word, str) for word in words)):
            raise ValueError(f"{self.name} {self.value} is not a list of words")
        return words


@dataclass
class Stage:
    """One stage with what it inherits from stages of the same file."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        return [found for found in self.instructions if found.name == name]

    def last(self, name: str) -> Instruction:
        found = self.all(name)
        assert found, f"stage {self.name!r} has no {name}"
        return found[-1]


def read_dockerfile(name: str) -> list[Stage]:
    """The stages of a Dockerfile in `deploy`, in order. Heredocs are not understood."""
    lines = [
        line
        for line in (DEPLOY / name).read_text().splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]
    stages: dict[str, Stage] = {}
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        instruction = _instruction(line)
        if instruction.name == "FROM":
            base, _, alias = instruction.value.partition(" AS ")
            inherited = stages[base].instructions if base in stages else []
            stage = Stage(alias or "final", base, list(inherited))
            stages[stage.name] = stage
        elif stages:
            stage.instructions.append(instruction)
        else:
            assert instruction.name == "ARG", f"{name}: {instruction.name} before the first FROM"
    return list(stages.values())


def _instruction(line: str) -> Instruction:
    name, _, rest = line.partition(" ")
    flags = {}
    while match := re.match(r"\s*--([\w-]+)=(\S+)\s+", rest):
        flags[match[1]] = match[2]
        rest = rest[match.end() :]
    return Instruction(name.upper(), flags, rest.strip())


def image_of(dockerfile: str, target: str | None = None) -> Stage:
    """The stage that `docker build --target` makes; the last one without it."""
    stages = read_dockerfile(dockerfile)
    if target is None:
        return stages[-1]
    return next(stage for stage in stages if stage.name == target)


def read_compose(name: str, environment: dict[str, str] | None = None) -> dict[str, Any]:
    """A Compose file of `deploy`, its variables replaced by those given or their defaults."""
    given = environment or {}

    def value_of(match: re.Match[str]) -> str:
        assert match["default"] is not None, f"{name}: {match['name']} has no default"
        return given.get(match["name"]) or match["default"][2:]

    text = _VARIABLE.sub(value_of, (DEPLOY / name).read_text())
    loaded = yaml.safe_load(text)
    assert isinstance(loaded, dict)
    return loaded


def variables_of(name: str) -> dict[str, str]:
    """The variables that a Compose file uses, with their defaults; one default for each."""
    found: dict[str, str] = {}
    for match in _VARIABLE.finditer((DEPLOY / name).read_text()):
        default = (match["default"] or ":-")[2:]
        assert found.setdefault(match["name"], default) == default, (
            f"{name}: {match['name']} has two defaults"
        )
    return found


def example_environment() -> dict[str, str]:
    """What `.env.example` sets."""
    lines = (DEPLOY / ".env.example").read_text().splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name: value for name, _, value in pairs}
