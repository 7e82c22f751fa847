"""The cache folder: where it is, whether it has room, what in it was verified, and who may write.

    models/<name>-<sha256>/<file>          a registry model, with `<file>.verified.json` beside it
    parts/<name>-<sha256>/                 what was downloaded of one that is not complete yet
    onnx/<name>-<fingerprint>-<precision>-<kind>-<builder>/    an assistant exported by this machine
    locks/                                 one lock file for each of the above

This module knows nothing about where models come from.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from anydraft.errors import FailedPreconditionError, ResourceExhaustedError

logger = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20


def cache_root() -> Path:
    """`$ANYDRAFT_CACHE`, else `$XDG_CACHE_HOME/anydraft`, else `~/.cache/anydraft`.

    Raises FailedPreconditionError where that is a file.
    """
    root = _chosen_root()
    if root.exists() and not root.is_dir():
        raise _not_writable(root, "it is a file")
    return root


def _chosen_root() -> Path:
    if chosen := os.environ.get("ANYDRAFT_CACHE"):
        return Path(chosen).expanduser()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base).expanduser() / "anydraft"
    return Path.home() / ".cache" / "anydraft"


def make_folder(folder: Path) -> Path:
    """Create `folder` and its parents; raises FailedPreconditionError where that is not allowed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(folder, error.strerror or type(error).__name__) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _not_writable(folder, "no permission to write")
    return folder


def _not_writable(folder: Path, problem: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"Nothing can be kept in {folder} ({problem}). Set ANYDRAFT_CACHE to a folder that you may "
        "write to.",
        reason="CACHE_NOT_WRITABLE",
    )


def folder_bytes(folder: Path) -> int:
    """Bytes in all files below `folder`, some of which may vanish meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def require_room(needed_bytes: int, folder: Path, purpose: str) -> None:
    """Raise ResourceExhaustedError unless `needed_bytes` fit on the disk that holds `folder`."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free_bytes = shutil.disk_usage(existing).free
    if free_bytes >= needed_bytes:
        return
    raise ResourceExhaustedError(
        f"{purpose} needs {human_bytes(needed_bytes)} in {folder}, where "
        f"{human_bytes(free_bytes)} are free. Free some space there, or set ANYDRAFT_CACHE to a "
        "folder on a larger disk.",
        reason="DISK_FULL",
    )


def human_bytes(count: int) -> str:
    """Decimal units, as disks and download pages count: `491.4 MB`."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


@contextmanager
def exclusive(lock_name: str, waiting_for: str) -> Iterator[None]:
    """Hold a lock file across processes; the system frees it when its process dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(make_folder(cache_root() / "locks") / f"{lock_name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.warning("Another process is busy with %s; waiting for it.", waiting_for)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def sha256_of(path: Path, advance: Callable[[int], None] | None = None) -> str:
    """Hex digest of a file; `advance` hears the number of bytes of each chunk."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            if advance:
                advance(len(chunk))
    return digest.hexdigest()


def mark_verified(path: Path, sha256: str) -> None:
    """Note beside `path` that its content has this hash, so that no start has to read it again."""
    stat = path.stat()
    note = {"sha256": sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    partial = marker_path(path).with_suffix(".partial")
    partial.write_text(json.dumps(note))
    partial.replace(marker_path(path))


def is_verified(path: Path, sha256: str) -> bool:
    """Whether `path` had that hash when it was last looked at, and was not touched since."""
    try:
        note = json.loads(marker_path(path).read_text())
        stat = path.stat()
    except (OSError, ValueError):
        return False
    return bool(note == {"sha256": sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns})


def marker_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified.json")
