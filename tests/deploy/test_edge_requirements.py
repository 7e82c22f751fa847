"""The edge needs no torch: what `anydraft[draft]` pulls in, followed through installed packages."""

import tomllib
from importlib.metadata import requires

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.files import ROOT

HEAVY = {"torch", "transformers", "accelerate", "safetensors"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _declared(extras: frozenset[str]) -> list[str]:
    """From pyproject.toml: installed metadata is as old as the last install."""
    optional = PROJECT["optional-dependencies"]
    return [*PROJECT["dependencies"], *(line for extra in extras for line in optional[extra])]


def closure(extra: str) -> set[str]:
    """Names of all that `anydraft[extra]` needs here, itself included.

    Raises PackageNotFoundError for a requirement that is not installed: it cannot be followed.
    """
    start = ("anydraft", frozenset([extra]))
    seen = {start}
    waiting = [start]
    while waiting:
        name, extras = waiting.pop()
        lines = _declared(extras) if name == "anydraft" else requires(name) or []
        for requirement in map(Requirement, lines):
            if not _applies(requirement, extras):
                continue
            found = (canonicalize_name(requirement.name), frozenset(requirement.extras))
            if found not in seen:
                seen.add(found)
                waiting.append(found)
    return {name for name, _ in seen}


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""})


def test_the_edge_needs_no_torch() -> None:
    assert closure("draft") & HEAVY == set()


def test_the_edge_has_what_it_imports() -> None:
    assert {"onnxruntime", "tokenizers", "huggingface-hub", "grpcio", "filelock"} <= closure(
        "draft"
    )


def test_torch_would_be_found() -> None:
    assert closure("verify") >= HEAVY
    assert closure("export") >= HEAVY


@pytest.mark.parametrize("added", ["transformers>=5", "accelerate"])
def test_adding_it_to_the_edge_would_be_noticed(
    added: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    optional = PROJECT["optional-dependencies"]
    monkeypatch.setitem(optional, "draft", [*optional["draft"], added])
    assert closure("draft") & HEAVY
