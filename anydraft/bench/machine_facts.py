"""What figures depend on besides the program."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from anydraft.machine import available_cores, cpu_fact
from anydraft.version import VERSION

_PACKAGES = ("grpcio", "onnxruntime", "tokenizers", "torch", "transformers")


def machine_facts() -> dict[str, object]:
    return {
        "anydraft": VERSION,
        "cores": available_cores(),
        "processor": cpu_fact("model name") or platform.processor() or "unknown",
        "memory_gb": _memory_gb(),
        "system": platform.system(),
        "python": platform.python_version(),
        **{name: _version(name) for name in _PACKAGES},
    }


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
