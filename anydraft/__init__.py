"""Run a big language model faster with any small model, across machines, losslessly.

    import anydraft

    with anydraft.Client("127.0.0.1:50051") as client:
        for event in client.generate("Once upon a time", max_new_tokens=64):
            print(event.text, end="", flush=True)

Names are imported when they are first used, so that `import anydraft` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anydraft.client import (
        AlternativeToken,
        AsyncClient,
        AsyncStream,
        Client,
        FinishReason,
        GenerateOptions,
        GenerationResult,
        ResumePoint,
        ServerInfo,
        Session,
        Stats,
        Stream,
        TextEvent,
        TokenLogprobs,
    )
    from anydraft.errors import (
        AnydraftError,
        ContextFullError,
        DeadlineExceededError,
        FailedPreconditionError,
        InternalError,
        InvalidFieldError,
        InvalidRequestError,
        NotFoundError,
        PermissionDeniedError,
        ResourceExhaustedError,
        UnavailableError,
        UnsupportedModelError,
    )
    from anydraft.reasons import Reason

    __version__: str

__all__ = [
    "AlternativeToken",
    "AnydraftError",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "ContextFullError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "FinishReason",
    "GenerateOptions",
    "GenerationResult",
    "InternalError",
    "InvalidFieldError",
    "InvalidRequestError",
    "NotFoundError",
    "PermissionDeniedError",
    "Reason",
    "ResourceExhaustedError",
    "ResumePoint",
    "ServerInfo",
    "Session",
    "Stats",
    "Stream",
    "TextEvent",
    "TokenLogprobs",
    "UnavailableError",
    "UnsupportedModelError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        value = import_module("anydraft.version").VERSION
    else:
        value = getattr(import_module(_home(name)), name)
    globals()[name] = value
    return value


def _home(name: str) -> str:
    if name == "Reason":
        return "anydraft.reasons"
    return "anydraft.errors" if name.endswith("Error") else "anydraft.client"


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
