"""What is packed: the source distribution tests itself, the wheel brings nothing else along."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.deploy.files import ROOT

PACKAGES = ("anydraft", "draft_node", "verify_node")
BESIDE = (
    "LICENSE",
    "MANIFEST.in",
    "Makefile",
    "README.md",
    "buf.yaml",
    "constraints.txt",
    "pyproject.toml",
    ".dockerignore",
)
FOLDERS = ("benchmarks", "deploy", "docs", "protos", "tests", ".ci")
NOT_PACKED = ("__pycache__", ".env", ".egg-info")

# As a build tool calls the backend, without its environment of fresh downloads.
BUILD = """
import sys
from setuptools import build_meta
name = getattr(build_meta, sys.argv[1])(sys.argv[2])
print("built", name)
"""


def _files_of(folder: Path) -> set[str]:
    """Files as they are in the repository, below the root."""
    return {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not any(part.endswith(NOT_PACKED) for part in path.parts)
    }


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository, because a build writes into its folder."""
    copy = tmp_path_factory.mktemp("source")
    for name in BESIDE:
        shutil.copy(ROOT / name, copy)
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in (*PACKAGES, *FOLDERS):
        shutil.copytree(ROOT / name, copy / name, ignore=ignore)
    (copy / "deploy" / ".env").write_text("HF_TOKEN=secret")
    return copy


def _build(source: Path, hook: str, out: Path) -> Path:
    command = [sys.executable, "-c", BUILD, hook, str(out)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    built = done.stdout.splitlines()[-1]
    assert built.startswith("built ")
    assert "Editable installation" not in done.stderr
    return out / built.removeprefix("built ")


def test_the_source_distribution_is_whole(source: Path, tmp_path: Path) -> None:
    with tarfile.open(_build(source, "build_sdist", tmp_path)) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    expected = set(BESIDE).union(*(_files_of(Path(name)) for name in (*PACKAGES, *FOLDERS)))
    assert len(expected) > 200
    assert expected - packed == set()
    assert not [name for name in packed if name.endswith((".pyc", "deploy/.env"))]


def test_the_wheel_holds_the_packages_and_nothing_else(source: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(_build(source, "build_wheel", tmp_path)) as archive:
        packed = set(archive.namelist())
        (metadata,) = (name for name in packed if name.endswith("/METADATA"))
        described = archive.read(metadata).decode()
    assert {name.partition("/")[0].partition("-")[0] for name in packed} == set(PACKAGES)
    expected = set().union(*(_files_of(Path(name)) for name in PACKAGES))
    assert expected - packed == set()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {f"Provides-Extra: {extra}" for extra in extras} <= set(described.splitlines())


def test_an_editable_install_is_a_folder_on_the_path(source: Path, tmp_path: Path) -> None:
    """No import hook, which setuptools warns about and editors do not follow."""
    with zipfile.ZipFile(_build(source, "build_editable", tmp_path)) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".pth"))
        assert archive.read(path).decode().strip() == str(source.resolve())
        assert not [name for name in archive.namelist() if name.endswith(".py")]
