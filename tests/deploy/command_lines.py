"""Every command line that `deploy` starts, and the parser that the program itself would use."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from typing import Any

from anydraft.cli import main as cli
from draft_node import __main__ as draft
from tests.deploy.files import DEPLOY, Stage, image_of, read_compose
from verify_node import __main__ as verify

_IMAGES = {
    "anydraft-draft:local": image_of("draft.Dockerfile"),
    "anydraft-export:local": image_of("verify.Dockerfile", "export"),
    "anydraft-verify:local": image_of("verify.Dockerfile"),
}


def parse(words: Sequence[str]) -> argparse.Namespace:
    """As the program `words[0]` does; raises SystemExit for what it would refuse."""
    program, arguments = words[0], list(words[1:])
    if program == "anydraft-draft":
        return draft.parser().parse_args(arguments)
    if program == "anydraft-verify":
        return verify.parser().parse_args(arguments)
    assert program == "anydraft", f"{program} is no program of anydraft"
    return cli._build_parser(arguments).parse_args(arguments)


def image_command(image: Stage, arguments: Sequence[str] | None = None) -> list[str]:
    """What a container of `image` runs; `arguments` take the place of its CMD."""
    chosen = image.last("CMD").exec_form() if arguments is None else arguments
    return [*image.last("ENTRYPOINT").exec_form(), *chosen]


def service_image(service: dict[str, Any]) -> Stage:
    build = service["build"]
    return image_of(build["dockerfile"].removeprefix("deploy/"), build.get("target"))


def service_command(service: dict[str, Any]) -> list[str]:
    assert "entrypoint" not in service
    return image_command(service_image(service), service.get("command"))


def deployed() -> dict[str, list[str]]:
    """Every command line of images, services, the README and comments, by where it is."""
    found = {f"image {name}": image_command(image) for name, image in _IMAGES.items()}
    for name, service in read_compose("compose.yaml")["services"].items():
        found[f"service {name}"] = service_command(service)
    for path in (DEPLOY / "README.md", *sorted(DEPLOY.glob("*.Dockerfile"))):
        for line in _shell_lines(path.read_text()):
            if command := _documented(line):
                found[f"{path.name}: {line}"] = command
    return found


def _shell_lines(text: str) -> list[str]:
    """Lines of a README or of a Dockerfile's comments, continued ones joined."""
    plain = re.sub(r"^#( +|$)", "", text, flags=re.MULTILINE)
    return re.sub(r"\\\n\s*", "", plain).splitlines()


def _documented(line: str) -> list[str] | None:
    """The command line of anydraft that a line of shell leads to, if it does."""
    if line.startswith(("anydraft ", "anydraft-")):
        return shlex.split(line, comments=True)
    if not line.startswith("docker run "):
        return None
    words = shlex.split(line, comments=True)
    (position,) = (index for index, word in enumerate(words) if word in _IMAGES)
    return image_command(_IMAGES[words[position]], words[position + 1 :])
