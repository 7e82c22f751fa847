"""The SDK. Its names are public as `anydraft.Client` and so on."""

from anydraft.client._answer import (
    AlternativeToken,
    FinishReason,
    GenerationResult,
    Stats,
    TextEvent,
    TokenLogprobs,
)
from anydraft.client._async import AsyncClient, AsyncStream
from anydraft.client._options import GenerateOptions
from anydraft.client._resume import ResumePoint, Session
from anydraft.client._server import ServerInfo
from anydraft.client._sync import Client, Stream

__all__ = [
    "AlternativeToken",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "FinishReason",
    "GenerateOptions",
    "GenerationResult",
    "ResumePoint",
    "ServerInfo",
    "Session",
    "Stats",
    "Stream",
    "TextEvent",
    "TokenLogprobs",
]

for _name in __all__:
    # FinishReason is a Literal, which belongs to no module.
    if isinstance(_class := globals()[_name], type):
        _class.__module__ = "anydraft"
