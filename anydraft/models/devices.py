"""Whether a model can be loaded here at all: packages and device, before any download."""

from __future__ import annotations

from typing import Any

from anydraft.errors import FailedPreconditionError

_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")
"""Ways of transformers to spread a model over whatever devices there are."""


def require_device(device_map: str | None) -> None:
    """Raise FailedPreconditionError where `device_map` names a device that torch cannot use here.

    Meant to be asked before anything is downloaded.
    """
    require_transformers()
    import torch

    if device_map in _SPREAD:
        return
    kind, _, index = (device_map or "cpu").partition(":")
    try:
        torch.device(kind)
    except RuntimeError as error:
        raise FailedPreconditionError(
            f"--device-map {device_map} is no device that torch knows. Choose cpu, cuda:0 or "
            f"another device, or one of {', '.join(_SPREAD)}.",
            reason="DEVICE_UNAVAILABLE",
        ) from error
    accelerator: Any = getattr(torch, kind, None)
    if not hasattr(accelerator, "is_available") or kind == "cpu":
        return
    if not accelerator.is_available():
        built = "" if kind != "cuda" or torch.version.cuda else " (it was built without CUDA)"
        raise FailedPreconditionError(
            f"--device-map {device_map} needs {kind}, which torch {torch.__version__} cannot use "
            f"on this machine{built}. Choose --device-map cpu, or install a driver and a torch for "
            "it.",
            reason="DEVICE_UNAVAILABLE",
        )
    count = accelerator.device_count() if hasattr(accelerator, "device_count") else 1
    if index and not (index.isdecimal() and int(index) < count):
        raise FailedPreconditionError(
            f"--device-map {device_map} is none of the {count} {kind} devices here. Choose "
            f"{kind}:0 to {kind}:{count - 1}, or auto.",
            reason="DEVICE_UNAVAILABLE",
        )


def require_transformers() -> None:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise FailedPreconditionError(
            f"Loading dense weights needs {error.name}. Run `pip install 'anydraft[verify]'`.",
            reason="PACKAGE_MISSING",
        ) from error
