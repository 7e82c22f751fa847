"""Models on disk: from the name that a user types to a folder that an engine can load.

A name is one of

    smollm2-135m-instruct                 a short name of the registry (`anydraft models list`)
    org/repo, org/repo@revision           a repository of the Hugging Face Hub
    org/repo:file.gguf                    one GGUF file of such a repository
    ./folder, /path/to/model.gguf         a local folder (transformers or ONNX) or GGUF file

`resolve_model` finds or fetches the files, `load_dense` turns them into a transformers model (for
targets), `resolve_assistant` into an ONNX folder (for the edge). Only `load_dense` and
`export_assistant` import torch, and only when they are called.
"""

from __future__ import annotations

from anydraft.models.assistant import resolve_assistant, resolve_assistant_files
from anydraft.models.export import PRECISIONS, export_assistant
from anydraft.models.files import ModelFiles, display_name
from anydraft.models.loading import load_dense
from anydraft.models.resolve import resolve_model

__all__ = [
    "PRECISIONS",
    "ModelFiles",
    "display_name",
    "export_assistant",
    "load_dense",
    "resolve_assistant",
    "resolve_assistant_files",
    "resolve_model",
]
