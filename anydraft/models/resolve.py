"""From a name to files: what kind of name it is, and fetching what it names.

The registry is asked first, then the file system, then the Hub, so that a short name means the same
everywhere; a local folder with such a name is written `./name`.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from anydraft.errors import FailedPreconditionError, NotFoundError, UnsupportedModelError
from anydraft.models import files, hub
from anydraft.models.cache import human_bytes, require_room
from anydraft.models.files import Layout, ModelFiles
from anydraft.models.progress import told
from anydraft.models.pull import pull
from anydraft.models.registry import RegistryEntry, load_registry

_HUB_NAME = re.compile(
    r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
    r"(@(?P<revision>[^:@]+))?(:(?P<file>[^:]+))?"
)

FORMS = (
    "a short name (`anydraft models list`), a Hub id (org/repo, org/repo@revision, "
    "org/repo:file.gguf), a local folder, or a local .gguf file"
)


@dataclass(frozen=True)
class HubName:
    """A name of the form `org/repo[@revision][:file]`."""

    repository: str
    revision: str | None
    file: str | None


def parse_name(name: str) -> RegistryEntry | Path | HubName:
    """What `name` means. Raises NotFoundError, with close names, where it means nothing."""
    registry = load_registry()
    if entry := registry.get(name):
        return entry
    path = Path(name).expanduser()
    if name and path.exists():
        return path
    if match := _HUB_NAME.fullmatch(name):
        return HubName(match["repository"], match["revision"], match["file"])
    close = difflib.get_close_matches(name, registry, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(close)}? " if close else ""
    raise NotFoundError(
        f"There is no model {name!r}. {hint}A model is {FORMS}.", reason="MODEL_NOT_FOUND"
    )


def resolve_model(name: str, *, progress: bool | None = None, download: bool = True) -> ModelFiles:
    """The files that `name` means, fetched into a cache if they are not here yet.

    `progress` None shows bars where stderr is a terminal. With `download` False nothing is fetched,
    and a model that is not here raises NotFoundError. Otherwise raises NotFoundError (no such
    model, or files of it are missing), FailedPreconditionError (wrong hash, gated),
    ResourceExhaustedError (disk), UnavailableError (network) or UnsupportedModelError.
    """
    return resolve_files(name, prefer="dense", progress=progress, download=download)


def resolve_files(
    name: str,
    *,
    prefer: Layout,
    precision: str | None = None,
    progress: bool | None = None,
    download: bool = True,
) -> ModelFiles:
    """`resolve_model` for either layout: `prefer` decides where a model has both."""
    meant = parse_name(name)
    if not isinstance(meant, Path):
        _require_packages(name)
    if isinstance(meant, RegistryEntry):
        found = files.gguf_model(
            pull(meant, progress=progress, download=download), name, meant.licence
        )
        return replace(found, sha256=meant.sha256)
    if isinstance(meant, Path):
        return files.inspect_local(
            meant.resolve(), files.display_name(name), prefer=prefer, precision=precision
        )
    if download and hub.is_reachable():
        return _from_hub(meant, name, prefer, precision, progress)
    return _from_hub_cache(meant, name, prefer, precision)


def _require_packages(name: str) -> None:
    for package in ("huggingface_hub", "filelock"):
        if importlib.util.find_spec(package) is None:
            raise FailedPreconditionError(
                f"Fetching {name} needs {package}. Run `pip install 'anydraft[draft]'` for a draft "
                "node, or `pip install 'anydraft[verify]'` for a verify node.",
                reason="PACKAGE_MISSING",
            )


def offers_onnx(meant: HubName, precision: str | None) -> bool:
    """Whether a Hub repository has an ONNX decoder; downloads nothing."""
    names = {file.path for file in hub.describe(meant.repository, meant.revision).files}
    return files.choose_onnx(names, precision) is not None


def _from_hub(
    meant: HubName, name: str, prefer: Layout, precision: str | None, progress: bool | None
) -> ModelFiles:
    held = hub.describe(meant.repository, meant.revision)
    wanted = _wanted_files(meant, [file.path for file in held.files], prefer, precision)
    cached = hub.cached_snapshot(meant.repository, held.commit)
    missing_bytes = sum(
        file.size_bytes
        for file in held.files
        if file.path in wanted and not (cached and (cached / file.path).exists())
    )
    require_room(missing_bytes, hub.cache_folder(), f"{name} ({human_bytes(missing_bytes)})")
    label = f"fetching {name} from the Hub"
    with told(label, missing_bytes, hub.blobs_folder(meant.repository), progress):
        folder = hub.download(meant.repository, held.commit, wanted, progress)
    return replace(_inspect(folder, meant, name, prefer, precision), licence=held.licence)


def _from_hub_cache(meant: HubName, name: str, prefer: Layout, precision: str | None) -> ModelFiles:
    folder = hub.cached_snapshot(meant.repository, meant.revision)
    if folder is None:
        hub.require_reachable(meant.repository)
        raise NotFoundError(
            f"{name} is not in the Hub's cache. Run `anydraft models pull {name}`.",
            reason="MODEL_NOT_CACHED",
        )
    return _inspect(folder, meant, name, prefer, precision)


def _inspect(
    folder: Path, meant: HubName, name: str, prefer: Layout, precision: str | None
) -> ModelFiles:
    path = folder / meant.file if meant.file else folder
    if not path.exists():
        raise NotFoundError(
            f"{name} is not in the Hub's cache, and nothing may be downloaded now. Run `anydraft "
            f"models pull {name}` while the Hub can be reached.",
            reason="MODEL_NOT_CACHED",
        )
    return files.inspect_local(path, name, prefer=prefer, precision=precision)


def _wanted_files(
    meant: HubName, names: Collection[str], prefer: Layout, precision: str | None
) -> list[str]:
    """Which of a repository's files are needed. Raises NotFoundError that says what it has."""
    if meant.file:
        if meant.file not in names:
            offered = sorted(name for name in names if name.endswith((".gguf", ".onnx")))
            raise NotFoundError(
                f"{meant.repository} has no file {meant.file}. It has: "
                f"{', '.join(offered) or 'no .gguf or .onnx file'}.",
                reason="MODEL_NOT_FOUND",
            )
        if meant.file.endswith(".onnx"):
            return files.onnx_companions(names, meant.file)
        return [meant.file]
    dense = files.dense_companions(names)
    decoder = files.choose_onnx(names, precision)
    if decoder and (prefer == "onnx" or not dense):
        return files.onnx_companions(names, decoder)
    if dense:
        return dense
    ggufs = sorted(name for name in names if name.endswith(".gguf"))
    if ggufs:
        raise NotFoundError(
            f"{meant.repository} holds GGUF files only. Name one of them: "
            f"{', '.join(f'{meant.repository}:{file}' for file in ggufs)}.",
            reason="MODEL_AMBIGUOUS",
        )
    files.refuse_pickles(names, meant.repository)
    raise UnsupportedModelError(
        f"{meant.repository} holds neither safetensors, nor ONNX, nor GGUF weights. Name another "
        "repository of the model.",
        reason="MODEL_FORMAT_UNKNOWN",
    )
