"""What lies in an ONNX folder: which file to run, and what its neighbours say about the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anydraft.errors import FailedPreconditionError, NotFoundError
from anydraft.models.files import choose_onnx, named_decoder
from draft_node.engines.onnx_signature import TensorNames

DEFAULT_CONTEXT_TOKENS = 2048
"""When no file says how long the model's context is."""


@dataclass(frozen=True)
class OnnxFiles:
    """One model's file and the facts beside it."""

    model: Path
    context_tokens: int
    eos_ids: frozenset[int]
    head_size: int | None
    """Width of a key or value, for graphs whose shapes do not say it."""
    names: TensorNames = field(default_factory=TensorNames)


def find(folder: Path, precision: str, named: str | None = None) -> OnnxFiles:
    """The file `named` inside `folder`; else `precision` chooses where there are several, see
    `anydraft.models.resolve_assistant_files`.

    Raises NotFoundError when there is no model, FailedPreconditionError for broken JSON."""
    model = folder / named if named else _model_file(folder, precision)
    genai = _nearest(model, folder, "genai_config.json").get("model", {})
    decoder = genai.get("decoder", {})
    config = _nearest(model, folder, "config.json")
    config = config.get("text_config") or config
    generation = _nearest(model, folder, "generation_config.json")
    context = genai.get("context_length") or _first(
        config, "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"
    )
    return OnnxFiles(
        model=model,
        context_tokens=context or DEFAULT_CONTEXT_TOKENS,
        eos_ids=frozenset(
            token_id
            for source in (genai, generation, config)
            for token_id in _as_ids(source.get("eos_token_id"))
        ),
        head_size=decoder.get("head_size") or _head_size(config),
        names=_tensor_names(decoder),
    )


def _tensor_names(decoder: Mapping[str, Any]) -> TensorNames:
    """Those that genai_config.json gives for the decoder; the usual ones for what it leaves out."""
    given = {**(decoder.get("inputs") or {}), **(decoder.get("outputs") or {})}
    return TensorNames(**{key: given[key] for key in TensorNames.KEYS if given.get(key)})


def _nearest(model: Path, folder: Path, file: str) -> dict[str, Any]:
    """The JSON file beside the model, else in the nearest folder above it, up to `folder`."""
    for above in model.parents:
        if (above / file).is_file():
            return _read(above / file)
        if above == folder:
            break
    return {}


def _model_file(folder: Path, precision: str) -> Path:
    if named := named_decoder(folder):
        return named
    files = [*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")]
    chosen = choose_onnx([file.relative_to(folder).as_posix() for file in files], precision)
    if chosen is None:
        raise NotFoundError(
            f"{folder} has no ONNX decoder. Give a folder with a model.onnx or onnx/model*.onnx, "
            "or export the model: anydraft models export.",
            reason="ONNX_MODEL_MISSING",
        )
    return folder / chosen


def _read(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FailedPreconditionError(
            f"{file} is not JSON ({error}). Download it again.", reason="MODEL_FILE_DAMAGED"
        ) from error
    return value if isinstance(value, dict) else {}


def _first(config: dict[str, Any], *names: str) -> int | None:
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def _as_ids(value: int | list[int] | None) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else value


def _head_size(config: dict[str, Any]) -> int | None:
    if isinstance(config.get("head_dim"), int):
        return int(config["head_dim"])
    hidden, heads = (
        _first(config, "hidden_size", "n_embd"),
        _first(config, "num_attention_heads", "n_head"),
    )
    return hidden // heads if hidden and heads else None
