"""What lies in an ONNX folder: which file to run, and what its neighbours say about the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anydraft.errors import FailedPreconditionError, NotFoundError
from anydraft.models.files import choose_onnx

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


def find(folder: Path, precision: str) -> OnnxFiles:
    """`precision` chooses where there are several files, see `anydraft.models.resolve_assistant`.

    Raises NotFoundError when there is no model, FailedPreconditionError for broken JSON."""
    genai = _read(folder / "genai_config.json").get("model", {})
    decoder = genai.get("decoder", {})
    config = _read(folder / "config.json")
    config = config.get("text_config") or config
    generation = _read(folder / "generation_config.json")
    context = genai.get("context_length") or _first(
        config, "max_position_embeddings", "n_positions", "max_sequence_length", "seq_length"
    )
    return OnnxFiles(
        model=_model_file(folder, decoder.get("filename"), precision),
        context_tokens=context or DEFAULT_CONTEXT_TOKENS,
        eos_ids=frozenset(
            token_id
            for source in (genai, generation, config)
            for token_id in _as_ids(source.get("eos_token_id"))
        ),
        head_size=decoder.get("head_size") or _head_size(config),
    )


def _model_file(folder: Path, named: str | None, precision: str) -> Path:
    if named and (folder / named).is_file():
        return folder / named
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
    if not file.is_file():
        return {}
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
