"""The registry: the built-in file is sound, and mistakes in a user's own are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from anydraft.errors import FailedPreconditionError
from anydraft.models.registry import (
    HubSource,
    OnnxSource,
    WheelSource,
    load_registry,
    read_registry,
)

GOOD = f"""
schema = 1
[models.mine]
licence = "MIT"
file = "mine.gguf"
size = 10
sha256 = "{"0" * 64}"
[[models.mine.sources]]
hub = "org/mine"
file = "mine.gguf"
revision = "abc"
[[models.mine.sources]]
wheels = ["mine==1.0"]
members = "*.gguf"
[models.mine.onnx]
hub = "org/mine-onnx"
revision = "def"
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "registry.toml"
    path.write_text(text)
    return path


def test_the_built_in_models() -> None:
    registry = load_registry()
    assert set(registry) == {
        "smollm2-135m-instruct",
        "qwen2.5-coder-0.5b-instruct",
        "qwen2.5-coder-1.5b-instruct",
        "gemma-3-270m",
    }
    for entry in registry.values():
        assert any(isinstance(source, WheelSource) for source in entry.sources)
        assert entry.licence
        assert entry.size_bytes > 90_000_000


def test_a_users_file_adds_and_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = GOOD + GOOD.replace("schema = 1", "").replace("models.mine", "models.gemma-3-270m")
    monkeypatch.setenv("ANYDRAFT_REGISTRY", str(written(tmp_path, own)))
    registry = load_registry()
    assert registry["mine"].sources == (
        HubSource("org/mine", "mine.gguf", "abc"),
        WheelSource(("mine==1.0",), "*.gguf"),
    )
    assert registry["mine"].onnx == OnnxSource("org/mine-onnx", "def")
    assert registry["mine"].onnx.name == "org/mine-onnx@def"
    assert registry["mine"].description == "mine"
    assert registry["gemma-3-270m"].size_bytes == 10
    assert "smollm2-135m-instruct" in registry


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("schema = 1", "schema = 2", "schema must be 1"),
        ("schema = 1", "", "schema is missing"),
        ("models.mine", 'models."Not/A name"', "the name must be lower-case"),
        ('licence = "MIT"', "", "models.mine: licence is missing"),
        ("size = 10", "size = 0", "size must be"),
        ("size = 10", "size = true", "size must be of type int"),
        ("size = 10", 'size = "10"', "size must be of type int"),
        ("0" * 64, "xyz", "sha256 must be 64"),
        ('file = "mine.gguf"\nsize', 'file = "../mine.gguf"\nsize', "file must be a plain"),
        ('licence = "MIT"', 'licence = "MIT"\nlicense = "MIT"', "license is not known here"),
        ('hub = "org/mine"', 'hub = "mine"', r"sources\[0\]: hub must be"),
        ('hub = "org/mine"', 'hub = "org/mine"\nwheels = []', "exactly one"),
        ('hub = "org/mine-onnx"', 'hub = "mine-onnx"', r"mine\.onnx: hub must be"),
        ('revision = "def"', 'file = "x"', r"mine\.onnx: file is not known"),
        ('["mine==1.0"]', "[]", r"sources\[1\]: wheels must name"),
        ('["mine==1.0"]', '["mine"]', "name==version"),
        ('["mine==1.0"]', '["--index-url=x==1"]', "name==version"),
        ('["mine==1.0"]', "[3]", "name==version"),
        ('members = "*.gguf"', "", "members is missing"),
        ("[models.mine]", "[models.mine", "cannot be read"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    text = GOOD.replace(old, new)
    assert text != GOOD
    with pytest.raises(FailedPreconditionError, match=named) as caught:
        read_registry(written(tmp_path, text))
    assert caught.value.reason == "REGISTRY_INVALID"
    assert str(tmp_path) in str(caught.value)


def test_an_entry_without_sources(tmp_path: Path) -> None:
    text = GOOD.split("[[", maxsplit=1)[0]
    with pytest.raises(FailedPreconditionError, match="sources is missing"):
        read_registry(written(tmp_path, text))
    with pytest.raises(FailedPreconditionError, match="at least one source"):
        read_registry(written(tmp_path, text + "sources = []\n"))


def test_a_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANYDRAFT_REGISTRY", str(tmp_path / "none.toml"))
    with pytest.raises(FailedPreconditionError, match="unset ANYDRAFT_REGISTRY"):
        load_registry()
