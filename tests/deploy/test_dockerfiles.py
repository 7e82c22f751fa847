"""What the images promise, read from their Dockerfiles. No engine is needed."""

import os
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import pytest

from tests.deploy.files import DOCKERFILES, ROOT, Stage, image_of, read_dockerfile

IMAGES = {
    "draft": image_of("draft.Dockerfile"),
    "verify": image_of("verify.Dockerfile"),
    "export": image_of("verify.Dockerfile", "export"),
}
CONTEXT_COPIES = [
    (name, source)
    for name in DOCKERFILES
    for stage in read_dockerfile(name)
    for copy in stage.all("COPY")
    if "from" not in copy.flags
    for source in copy.value.split()[:-1]
]
SECRETS_AND_LITTER = (
    ".git/config",
    ".venv/bin/python",
    "anydraft/__pycache__/errors.cpython-311.pyc",
    "anydraft/rpc/__pycache__/server.cpython-311.pyc",
    "deploy/.env",
    "tests/conftest.py",
)


@pytest.mark.parametrize("name", IMAGES)
def test_runs_as_a_number_that_is_not_root(name: str) -> None:
    user, _, group = IMAGES[name].last("USER").value.partition(":")
    assert int(user) > 0
    assert int(group) > 0


@pytest.mark.parametrize("name", IMAGES)
def test_the_cache_is_a_volume_that_its_user_owns(name: str) -> None:
    image = IMAGES[name]
    environment = _environment(image)
    (volume,) = image.last("VOLUME").exec_form()
    assert environment["ANYDRAFT_CACHE"] == volume
    assert environment["HF_HOME"].startswith(f"{volume}/")
    user, _, group = image.last("USER").value.partition(":")
    made = f"install --directory --owner={user} --group={group} {volume}"
    assert any(made in run.value for run in image.all("RUN"))


@pytest.mark.parametrize("name", IMAGES)
def test_nothing_is_written_outside_the_volume_and_tmp(name: str) -> None:
    environment = _environment(IMAGES[name])
    assert environment["PYTHONDONTWRITEBYTECODE"] == "1"
    assert environment["HOME"] == "/tmp"
    assert IMAGES[name].last("WORKDIR").value == "/tmp"


@pytest.mark.parametrize("name", IMAGES)
def test_stops_by_sigterm_and_hears_it(name: str) -> None:
    assert IMAGES[name].last("STOPSIGNAL").value == "SIGTERM"
    # A shell form would put a shell in front, which does not pass signals on.
    assert IMAGES[name].last("ENTRYPOINT").exec_form()[0].startswith("anydraft")
    assert IMAGES[name].last("CMD").exec_form()


@pytest.mark.parametrize("name", IMAGES)
def test_says_its_licence(name: str) -> None:
    licence = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"]
    label = IMAGES[name].last("LABEL").value
    assert f'org.opencontainers.image.licenses="{licence}"' in label
    assert f'org.opencontainers.image.title="anydraft-{name}"' in label


@pytest.mark.parametrize(
    ("dockerfile", "stage", "extra"),
    [
        ("draft.Dockerfile", "build", "draft"),
        ("verify.Dockerfile", "build", "verify"),
        ("verify.Dockerfile", "build-export", "export"),
    ],
)
def test_installs_its_extra_under_the_constraints(dockerfile: str, stage: str, extra: str) -> None:
    runs = [run.value for run in image_of(dockerfile, stage).all("RUN")]
    installs = [run for run in runs if "pip install" in run and "--no-deps" not in run]
    assert all("pip install -c constraints.txt " in run for run in installs)
    assert f'".[{extra}]"' in installs[-1]


def test_a_torch_in_the_edge_image_breaks_its_build() -> None:
    """The guard itself is run here, where torch is installed."""
    build = image_of("draft.Dockerfile", "build")
    guard = build.instructions[-1]
    assert guard.name == "RUN", "the guard has to come after the last install"
    found = _run(guard.value)
    assert (found.returncode, found.stderr) == (1, "torch, transformers\n")
    absent = guard.value.replace("'torch'", "'no_torch'").replace("'transformers'", "'no_other'")
    assert _run(absent).returncode == 0


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_both_stages_agree_on_the_python_image(dockerfile: str) -> None:
    stages = read_dockerfile(dockerfile)
    named = {stage.name for stage in stages}
    assert {stage.base for stage in stages} - named == {"${PYTHON_IMAGE}"}
    text = (ROOT / "deploy" / dockerfile).read_text()
    (default,) = (line for line in text.splitlines() if line.startswith("ARG PYTHON_IMAGE="))
    assert default == "ARG PYTHON_IMAGE=python:3.11-slim"


@pytest.mark.parametrize(("dockerfile", "source"), CONTEXT_COPIES)
def test_what_is_copied_is_there_and_not_ignored(dockerfile: str, source: str) -> None:
    assert (ROOT / source).exists()
    assert not _is_ignored(source)


@pytest.mark.parametrize("path", SECRETS_AND_LITTER)
def test_the_rest_stays_out_of_the_build(path: str) -> None:
    assert _is_ignored(path)


def _environment(image: Stage) -> dict[str, str]:
    pairs = (pair for variable in image.all("ENV") for pair in variable.value.split())
    return dict(pair.split("=", 1) for pair in pairs)


def _run(command: str) -> subprocess.CompletedProcess[str]:
    """A RUN line, with the Python of these tests first in PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    shell = ["sh", "-c", command]
    environment = os.environ | {"PATH": path}
    return subprocess.run(shell, env=environment, capture_output=True, text=True, cwd="/")


def _is_ignored(path: str) -> bool:
    """As Docker reads .dockerignore: the last pattern that matches the path or a folder of it."""
    ignored = False
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    for pattern in (line for line in lines if line and not line.startswith("#")):
        matched = pattern.removeprefix("!")
        candidates = [PurePosixPath(path), *PurePosixPath(path).parents]
        if any(_matches(str(candidate), matched) for candidate in candidates):
            ignored = not pattern.startswith("!")
    return ignored


def _matches(path: str, pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatchcase(PurePosixPath(path).name, pattern[3:])
    return path.count("/") == pattern.count("/") and path != "." and fnmatchcase(path, pattern)
