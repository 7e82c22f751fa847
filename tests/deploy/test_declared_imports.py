"""Every package that the code imports is required by the extra that installs the code."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.files import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"anydraft", "draft_node", "verify_node"}
# packages_distributions() knows the first part of a name only, and several share this one.
NAMESPACES = {"google.protobuf": "protobuf", "google.rpc": "googleapis-common-protos"}

# Code, and the extras each of which must bring what it imports; the first that matches. What is not
# named here runs with the bare install.
EXTRAS_OF: dict[str, tuple[str, ...]] = {
    "anydraft/bench/peer.py": ("verify",),
    "anydraft/bench/table.py": ("cli",),
    "anydraft/cli/bench.py": ("cli",),
    "anydraft/cli/demo.py": ("cli",),
    "anydraft/cli/demo_answers.py": ("cli",),
    "anydraft/cli/demo_report.py": ("cli",),
    "anydraft/rpc/health_watch.py": ("draft", "verify"),
    "anydraft/rpc/server.py": ("draft", "verify"),
    "anydraft/models/build_onnx.py": ("export",),
    "anydraft/models/onnx_check.py": ("export",),
    "anydraft/models/export.py": ("export",),
    "anydraft/models/tree_graph.py": ("export",),
    "anydraft/models/devices.py": ("verify",),
    "anydraft/models/gguf": ("verify",),
    "anydraft/models/loading.py": ("verify",),
    "anydraft/models/": ("draft", "verify"),
    "anydraft/text/": ("draft", "verify"),
    "draft_node/engines/torch": ("verify",),
    "draft_node/": ("draft",),
    "verify_node/": ("verify",),
}
# Imported where they may be missing, with another extra's error around them.
GUARDED = {
    ("draft_node/load.py", "torch"),
}


def _required(extra: str | None) -> set[str]:
    lines = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(extra, [])]
    found = set()
    for requirement in map(Requirement, lines):
        if requirement.name == "anydraft":
            for inner in requirement.extras:
                found |= _required(inner)
        else:
            found.add(canonicalize_name(requirement.name))
    return found


def _imports(source: str) -> set[str]:
    """Names of modules that the code runs, wherever in it; not what only type checkers read."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            # `from google.protobuf import any_pb2`
            found.add(node.module)
    return found


def _distributions(module: str) -> set[str]:
    """Any of these provides `module`; none for the standard library and our own code."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in OURS:
        return set()
    for namespace, distribution in NAMESPACES.items():
        if module.startswith(namespace):
            return {distribution}
    return {canonicalize_name(name) for name in _installed_modules().get(top, [top])}


@cache
def _installed_modules() -> Mapping[str, list[str]]:
    return packages_distributions()


def _extras(path: str) -> tuple[str | None, ...]:
    return next((extras for start, extras in EXTRAS_OF.items() if path.startswith(start)), (None,))


def undeclared(path: str, source: str) -> set[str]:
    """`module (extra)` for each import that an extra does not bring."""
    return {
        f"{module} ({extra or 'no extra'})"
        for module in _imports(source)
        if (path, module.partition(".")[0]) not in GUARDED and (names := _distributions(module))
        for extra in _extras(path)
        if not names & _required(extra)
    }


FILES = sorted(
    path.relative_to(ROOT).as_posix() for package in OURS for path in (ROOT / package).rglob("*.py")
)


@pytest.mark.parametrize("path", FILES)
def test_what_is_imported_is_declared(path: str) -> None:
    assert undeclared(path, (ROOT / path).read_text()) == set()


@pytest.mark.parametrize(
    ("path", "source", "missing"),
    [
        ("anydraft/models/cache.py", "def f():\n    import psutil", {"psutil (draft)"}),
        ("anydraft/client/_sync.py", "from rich import box", {"rich (no extra)"}),
        ("draft_node/load.py", "import transformers.utils", {"transformers (draft)"}),
        ("anydraft/client/_sync.py", "import json, grpc, google.rpc.status_pb2", set()),
        ("verify_node/load.py", "import torch.nn, anydraft.errors", set()),
    ],
)
def test_an_undeclared_import_would_be_noticed(path: str, source: str, missing: set[str]) -> None:
    found = undeclared(path, source)
    assert {name.replace(".utils", "") for name in found} == missing


@pytest.mark.parametrize("start", EXTRAS_OF)
def test_the_list_names_code_that_is_there(start: str) -> None:
    assert any(path.startswith(start) for path in FILES)


@pytest.mark.parametrize(("path", "module"), sorted(GUARDED))
def test_the_exceptions_are_needed(path: str, module: str) -> None:
    assert module in {name.partition(".")[0] for name in _imports((ROOT / path).read_text())}


def test_the_versions_that_were_tried_cover_every_requirement() -> None:
    """`-c constraints.txt` leaves nothing that we name to chance."""
    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines}
    named = {name for extra in PROJECT["optional-dependencies"] for name in _required(extra)}
    assert named <= pinned
