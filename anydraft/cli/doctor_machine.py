"""The machine: processor, and room for models."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

from anydraft.cli.findings import Finding, fail, ok, problem_and_fix, warn
from anydraft.errors import AnydraftError
from anydraft.machine import CPUINFO, available_cores, cpu_fact
from anydraft.models.cache import cache_root, human_bytes

# What makes int4, int8 and bf16 arithmetic quick, by the names of Linux.
_FEATURES = (
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
)
_LOW_SPACE_BYTES = 5 * 10**9


def machine_findings() -> Iterator[Finding]:
    yield _processor()
    yield _cache_folder()


def _processor() -> Finding:
    architecture = platform.machine()
    detail = f"{architecture}, {available_cores()} cores for this process"
    flags = _cpu_flags(CPUINFO)
    if not flags:
        return ok("processor", f"{detail}; features unknown on {platform.system()}")
    found = [feature for feature in _FEATURES if feature in flags]
    detail = f"{detail}, {' '.join(found) or 'no vector features of note'}"
    if architecture == "x86_64" and "avx2" not in flags:
        return warn("processor", detail, "models will be slow without AVX2: run nodes elsewhere")
    return ok("processor", detail)


def _cpu_flags(cpuinfo: Path) -> frozenset[str]:
    """Feature names of the first core; none where there is no such file."""
    return frozenset(cpu_fact("flags", "features", cpuinfo=cpuinfo).split())


def _cache_folder() -> Finding:
    try:
        folder = cache_root()
    except AnydraftError as error:
        return fail("model cache", *problem_and_fix(error))
    choose_another = "set ANYDRAFT_CACHE to another folder"
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir():
        return fail("model cache", f"{existing} is a file, not a folder", choose_another)
    free_bytes = shutil.disk_usage(existing).free
    detail = f"{folder}, {human_bytes(_size_of(folder))}; {human_bytes(free_bytes)} free"
    if not os.access(existing, os.W_OK):
        return fail("model cache", f"{detail}; not writable", choose_another)
    if free_bytes < _LOW_SPACE_BYTES:
        return warn("model cache", detail, f"make room for models, or {choose_another}")
    return ok("model cache", detail)


def _size_of(folder: Path) -> int:
    """Bytes of the files below `folder`, links not followed; what cannot be read counts as 0."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).lstat().st_size
            except OSError:
                continue
    return total
