"""The Hugging Face Hub: whether it can be reached, what a repository holds, and its files.

Repositories named by their id live in the Hub's own cache (`HF_HOME`), shared with every other
program that uses it. An absent Hub is found out in seconds, not after half a minute of retries.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from anydraft.errors import (
    AnydraftError,
    FailedPreconditionError,
    NotFoundError,
    UnavailableError,
)
from anydraft.models.progress import wants_progress

CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class HubFile:
    path: str
    size_bytes: int
    sha256: str | None
    """Only of large files, which the Hub stores by their hash."""


@dataclass(frozen=True)
class HubRepository:
    """What a repository holds at one commit."""

    repository: str
    commit: str
    licence: str | None
    files: tuple[HubFile, ...]


def cache_folder() -> Path:
    """Where the Hub's own cache is."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def blobs_folder(repository: str) -> Path:
    """Where the Hub's cache keeps what it downloads of a repository, finished or not."""
    from huggingface_hub.file_download import repo_folder_name

    return cache_folder() / repo_folder_name(repo_id=repository, repo_type="model") / "blobs"


@functools.cache
def is_reachable() -> bool:
    """Whether the Hub answers at all; asked once per process. `HF_HUB_OFFLINE` says no."""
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        get_session().head(constants.ENDPOINT, timeout=CONNECT_TIMEOUT_S)
    except Exception:
        # The library under the session has changed more than once; its errors share no base.
        return False
    return True


def describe(repository: str, revision: str | None) -> HubRepository:
    """The files of a repository, without downloading any.

    Raises NotFoundError, FailedPreconditionError (gated) or UnavailableError.
    """
    from huggingface_hub import HfApi

    require_reachable(repository)
    with _mapped_errors(repository, revision):
        info = HfApi().model_info(
            repository, revision=revision, files_metadata=True, timeout=4 * CONNECT_TIMEOUT_S
        )
    files = tuple(
        HubFile(
            path=sibling.rfilename,
            size_bytes=sibling.size or 0,
            sha256=sibling.lfs.sha256 if sibling.lfs else None,
        )
        for sibling in info.siblings or ()
    )
    licence = getattr(info.card_data, "license", None) if info.card_data else None
    return HubRepository(repository, info.sha or "main", licence, files)


def download(
    repository: str, commit: str | None, files: Sequence[str], progress: bool | None
) -> Path:
    """The named files in the Hub's cache; returns the snapshot's folder.

    Files that are there already are not fetched again, and an interrupted file is resumed.
    """
    from huggingface_hub import snapshot_download

    with _mapped_errors(repository, commit), _progress_bars(progress):
        return Path(
            snapshot_download(
                repository,
                revision=commit,
                # A name may hold characters that a pattern would read as wildcards.
                allow_patterns=[_escape(file) for file in files],
                etag_timeout=CONNECT_TIMEOUT_S,
            )
        )


def cached_snapshot(repository: str, revision: str | None) -> Path | None:
    """The folder of a snapshot that was downloaded before, perhaps not all of it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repository, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None


def download_into(
    folder: Path, repository: str, revision: str | None, file: str, progress: bool | None
) -> Path:
    """One file below `folder` instead of the Hub's cache; resumed where it was interrupted."""
    from huggingface_hub import hf_hub_download

    require_reachable(repository)
    with _mapped_errors(repository, revision), _progress_bars(progress):
        return Path(
            hf_hub_download(
                repository,
                file,
                revision=revision,
                local_dir=folder,
                etag_timeout=CONNECT_TIMEOUT_S,
            )
        )


def require_reachable(repository: str) -> None:
    if not is_reachable():
        raise UnavailableError(
            f"The Hugging Face Hub cannot be reached, and {repository} is not in its cache. Check "
            "the network (HF_ENDPOINT, HF_HUB_OFFLINE), or name a folder that holds the model.",
            reason="HUB_UNREACHABLE",
        )


@contextmanager
def _mapped_errors(repository: str, revision: str | None) -> Iterator[None]:
    """Hub errors as ours. The order matters: to the Hub, a gated repository is a missing one."""
    from huggingface_hub import errors

    at = f"{repository}@{revision}" if revision else repository
    try:
        yield
    except AnydraftError:
        raise
    except errors.GatedRepoError as error:
        raise FailedPreconditionError(
            f"{repository} is gated. Accept its licence on its Hub page, then log in with "
            "`hf auth login` or set HF_TOKEN.",
            reason="MODEL_GATED",
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise NotFoundError(
            f"The Hub has no model {repository}, or it is private. Check the spelling, or log in "
            "with `hf auth login` or set HF_TOKEN.",
            reason="MODEL_NOT_FOUND",
        ) from error
    except (errors.RevisionNotFoundError, errors.RemoteEntryNotFoundError) as error:
        raise NotFoundError(
            f"The Hub has no {at} with that revision and file. Check the name, or leave the "
            "revision out.",
            reason="MODEL_NOT_FOUND",
        ) from error
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise FailedPreconditionError(
            f"The Hub's cache {cache_folder()} cannot be written ({error.strerror}). Set HF_HOME "
            "to a folder that you may write to.",
            reason="CACHE_NOT_WRITABLE",
        ) from error
    except Exception as error:
        # Every other failure of the Hub's client (httpx, OSError, its own errors) is the network's.
        raise UnavailableError(
            f"{at} could not be fetched from the Hub ({type(error).__name__}: {error}). Try again: "
            "what was downloaded is kept.",
            reason="HUB_UNREACHABLE",
            retry_after_s=10.0,
        ) from error


@contextmanager
def _progress_bars(progress: bool | None) -> Iterator[None]:
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if wants_progress(progress) or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _escape(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)
