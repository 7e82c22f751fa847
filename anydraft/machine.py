"""The machine that this process runs on."""

from __future__ import annotations

import os
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def available_cores() -> int:
    """Cores that this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_fact(*keys: str, cpuinfo: Path = CPUINFO) -> str:
    """What Linux says of the first core under one of `keys`, in lower case; empty elsewhere."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip().lower() in keys:
            return value.strip()
    return ""
