"""The installation: Python, packages, and whether the engines start.

Engines are tried in a process of their own: a wheel built for another processor does not raise an
error, it kills whoever imports it.
"""

from __future__ import annotations

import json
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from shutil import which
from typing import Any

from anydraft.cli.findings import Finding, fail, ok, warn
from anydraft.version import VERSION

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?P<rest>.*)", re.DOTALL)

_ENGINE_OF_EXTRA = {
    "draft": "onnxruntime",
    "verify": "torch",
    "export": "onnxruntime-genai",
    "cli": "rich",
}
"""An extra counts as wanted once this package of it is there; its others are shared."""

_ENGINE_TIMEOUT_S = 120

_TORCH = """
import json, torch
devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
if torch.backends.mps.is_available():
    devices.append("mps")
print(json.dumps({
    "version": torch.__version__,
    "devices": devices or ["cpu (" + torch.backends.cpu.get_cpu_capability() + ")"],
    "threads": torch.get_num_threads(),
    "cuda": torch.cuda.is_available(),
}))
"""

_ONNXRUNTIME = """
import json, onnxruntime
providers = onnxruntime.get_available_providers()
print(json.dumps({"version": onnxruntime.__version__, "providers": providers}))
"""


def installation_findings() -> Iterator[Finding]:
    yield ok("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield _base_packages()
    yield _stubs()
    for extra in _ENGINE_OF_EXTRA:
        yield _extra(extra)
    if _installed("torch") is not None:
        yield _torch()
    if _installed("onnxruntime") is not None:
        yield _onnxruntime()


def _base_packages() -> Finding:
    names = _requirements(None) or ["grpcio", "protobuf"]
    listed = [f"{name} {_installed(name) or 'missing'}" for name in names]
    return ok("packages", ", ".join([f"anydraft {VERSION}", *listed]))


def _stubs() -> Finding:
    """Generated code refuses a protobuf or grpcio older than its generator."""
    try:
        import_module("anydraft.v1.generation_pb2_grpc")
    except Exception as exc:
        fix = 'pip install --upgrade "anydraft" grpcio protobuf'
        return fail("wire contract", f"the stubs do not load: {exc}", fix)
    return ok("wire contract", "the stubs load")


def _extra(extra: str) -> Finding:
    name = f"extra [{extra}]"
    if _installed(_ENGINE_OF_EXTRA[extra]) is None:
        return ok(name, f'not installed; pip install "anydraft[{extra}]" if this machine needs it')
    missing = [needed for needed in _requirements(extra) if _installed(needed) is None]
    if missing:
        fix = f'pip install "anydraft[{extra}]"'
        return fail(name, f"incomplete: {', '.join(missing)} missing", fix)
    return ok(name, "installed")


def _torch() -> Finding:
    found = _run_probe(_TORCH)
    if isinstance(found, str):
        return fail("torch", found, "reinstall torch for this machine (pytorch.org says how)")
    detail = f"{found['version']} on {', '.join(found['devices'])}, {found['threads']} threads"
    if which("nvidia-smi") and not found["cuda"]:
        fix = "install a torch with CUDA that fits the driver (pytorch.org says how)"
        return warn("torch", f"{detail}; it does not see this machine's NVIDIA GPU", fix)
    return ok("torch", detail)


def _onnxruntime() -> Finding:
    found = _run_probe(_ONNXRUNTIME)
    if isinstance(found, str):
        return fail("onnxruntime", found, "pip install --force-reinstall onnxruntime")
    return ok("onnxruntime", f"{found['version']} with {', '.join(found['providers'])}")


def _run_probe(code: str) -> dict[str, Any] | str:
    """What the JSON on the last line of its output says, or in words why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=_ENGINE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"did not start within {_ENGINE_TIMEOUT_S} s"
    if done.returncode < 0:
        return f"was killed by {signal.Signals(-done.returncode).name} while it started"
    if done.returncode > 0:
        return f"does not start: {(done.stderr.strip() or 'no reason given').splitlines()[-1]}"
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _requirements(extra: str | None) -> list[str]:
    """Names that `anydraft[extra]` requires of others; of the bare install for None."""
    try:
        lines = requires("anydraft") or []
    except PackageNotFoundError:  # run from a source tree that was never installed
        return []
    names = []
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is None or match["name"] == "anydraft":
            continue
        wanted = f'extra == "{extra}"' in line if extra else "extra ==" not in line
        if wanted:
            names.append(match["name"])
    return names
