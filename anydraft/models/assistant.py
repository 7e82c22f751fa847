"""From a name to an ONNX folder for the edge: as it is where it is one, else exported once.

An export is kept in the cache under what it was made from, so that the second start needs neither
torch nor the original. The folder may be copied to a machine that has neither.
"""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import replace
from pathlib import Path

from anydraft.errors import InvalidRequestError
from anydraft.models import hub
from anydraft.models.cache import cache_root, exclusive
from anydraft.models.export import (
    EXPORTED_DECODER,
    MANIFEST,
    PRECISIONS,
    builder_version,
    can_export,
    export_assistant,
    require_export_extra,
)
from anydraft.models.files import ModelFiles, display_name
from anydraft.models.registry import RegistryEntry
from anydraft.models.resolve import HubName, offers_onnx, parse_name, resolve_files

logger = logging.getLogger(__name__)

_TREES, _CHAINS = "tree-genai", "genai"
"""In the names of exports, before the version of the builder: what the graph can do."""


def resolve_assistant(
    name: str,
    *,
    precision: str = "int4",
    progress: bool | None = None,
    download: bool = True,
    trust_remote_code: bool = False,
) -> Path:
    """The folder of `resolve_assistant_files`."""
    return resolve_assistant_files(
        name,
        precision=precision,
        progress=progress,
        download=download,
        trust_remote_code=trust_remote_code,
    ).folder


def resolve_assistant_files(
    name: str,
    *,
    precision: str = "int4",
    progress: bool | None = None,
    download: bool = True,
    trust_remote_code: bool = False,
) -> ModelFiles:
    """A folder with tokenizer.json, and the ONNX decoder in it, of the model that `name` means.

    `precision` ("int4", "int8", "fp32") chooses among several ONNX files, or what is exported; a
    folder with one ONNX file is taken as it is, and so is a file that `name` names. Raises what
    `resolve_model` and `export_assistant` raise; FailedPreconditionError (EXPORT_NEEDED) where an
    export is needed and its packages are missing.
    """
    if precision not in PRECISIONS:
        raise InvalidRequestError(
            f"There is no precision {precision!r}. Choose one of {', '.join(PRECISIONS)}.",
            reason="PRECISION_UNKNOWN",
        )
    meant = parse_name(name)
    if isinstance(meant, RegistryEntry):
        # Known by its hash: an export that was copied here is found without the original.
        stem = f"{meant.key}-{precision}"
        if found := _cached_export(stem):
            return _exported(found, name)
        if not can_export() and (ready := _ready_made(meant, precision, progress, download)):
            return ready
        require_export_extra(name)
    elif isinstance(meant, HubName) and not can_export():
        _require_ready_made(meant, name, precision)
    files = resolve_files(
        name, prefer="onnx", precision=precision, progress=progress, download=download
    )
    if files.onnx_file is not None:
        return files
    stem = f"{_key(files)}-{precision}"
    if found := _cached_export(stem):
        return _exported(found, name)
    require_export_extra(name)
    out = cache_root() / "onnx" / f"{stem}-{_TREES}{builder_version()}"
    with exclusive(out.name, f"exporting {name}"):
        found = _cached_export(stem) or export_assistant(
            files, out, precision, progress=progress, trust_remote_code=trust_remote_code
        )
    return _exported(found, name)


def _exported(folder: Path, name: str) -> ModelFiles:
    return ModelFiles(display_name(name), folder, None, None, onnx_file=EXPORTED_DECODER)


def _ready_made(
    entry: RegistryEntry, precision: str, progress: bool | None, download: bool
) -> ModelFiles | None:
    """The ONNX files that somebody published of a registry model, where nothing can be exported."""
    if entry.onnx is None:
        return None
    is_here = hub.cached_snapshot(entry.onnx.repository, entry.onnx.revision) is not None
    if not is_here and not (download and hub.is_reachable()):
        return None
    logger.info(
        "%s: torch is not installed to export it; taking the ONNX files of %s",
        entry.name,
        entry.onnx,
    )
    found = resolve_files(
        entry.onnx.name, prefer="onnx", precision=precision, progress=progress, download=download
    )
    return replace(found, name=entry.name, licence=entry.licence)


def _require_ready_made(meant: HubName, name: str, precision: str) -> None:
    """Find out before gigabytes are downloaded that they would have to be exported here."""
    is_here = hub.cached_snapshot(meant.repository, meant.revision) is not None
    if not is_here and hub.is_reachable() and not offers_onnx(meant, precision):
        require_export_extra(name)


def _cached_export(stem: str) -> Path | None:
    """The newest finished export of that key, by whichever version of the builder.

    Of those that know no trees, made before there were any, only where none can be made anew.
    """
    folder = cache_root() / "onnx"
    for kind in (_TREES,) if can_export() else (_TREES, _CHAINS):
        finished = sorted(
            folder.glob(f"{stem}-{kind}*/{MANIFEST}"),
            key=lambda manifest: manifest.stat().st_mtime_ns,
        )
        if finished:
            return finished[-1].parent
    return None


def _key(files: ModelFiles) -> str:
    """Names what an export is made from: the verified hash, else where the files are and when
    each was last changed."""
    label = re.sub(r"[^\w.-]+", "-", files.name.lower()).strip("-.")[-60:] or "model"
    if files.sha256:
        return f"{label}-{files.sha256[:12]}"
    digest = hashlib.sha256(str(files.folder.resolve()).encode())
    for path in sorted(files.folder.iterdir()):
        if path.is_file() and files.gguf_file in (None, path.name):
            stat = path.stat()
            digest.update(f"\0{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    return f"{label}-{digest.hexdigest()[:12]}"
