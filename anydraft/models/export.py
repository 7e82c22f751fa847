"""Turning an assistant into an ONNX folder that an edge without torch can load.

The work is done by onnxruntime-genai's model builder, in a process of its own: it prints, and it
holds the whole model in memory once more. The folder appears whole or not at all, and only after
its first logits were compared with the original's.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import json
import logging
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anydraft.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    UnsupportedModelError,
)
from anydraft.models.cache import make_folder, require_room
from anydraft.models.files import ModelFiles
from anydraft.models.loading import load_dense, progress_bars
from anydraft.models.onnx_check import onnx_logits
from anydraft.models.progress import wants_progress
from anydraft.models.tree_graph import add_tree_inputs
from anydraft.version import VERSION

logger = logging.getLogger(__name__)

PRECISIONS = ("int4", "int8", "fp32")
MANIFEST = "anydraft.json"
EXPORTED_DECODER = "model.onnx"

_BUILDER = "anydraft.models.build_onnx"
_BUILDER_OPTIONS = (
    # 4: activations in int8 as well, several times faster on CPUs. 32: the smallest error.
    "accuracy_level=4",
    "block_size=32",
    # Sliding layers keep a whole cache, so that rolling back a draft is setting one length.
    "windowed_kv_cache=false",
)
# Plain int4 costs a small model a lot: SmolLM2-135M loses 0.35 nats a token; with these 0.05, for a
# tenth more time a token (12.7 ms on one core) and a third more bytes; int8 loses 0.00, in 17 ms.
# The search cannot pack rows of an odd number of blocks; such a model gets plain int4.
_INT4_OPTIONS = (
    "algo_config=k_quant",
    "matmul_mixed_precision=last_matmul:int8,mixed_layers:int8",
)
_PROBE = "The quick brown fox jumps over the lazy dog. 1 + 1 = 2\n"
_FP32_TOLERANCE = 2e-3
# Cosine of quantized to original logits. Sound exports lie above 0.9, broken ones near 0.
_LEAST_SIMILARITY = 0.5


@dataclass(frozen=True)
class _Reference:
    """What the original model says about the probe."""

    token_ids: list[int]
    logits: Any
    """[len(token_ids), vocabulary], fp32 numpy."""


def can_export() -> bool:
    """Whether the `export` extra is installed."""
    needed = ("torch", "transformers", "onnx", "onnx_ir", "onnxruntime", "onnxruntime_genai")
    return all(importlib.util.find_spec(package) for package in needed)


def builder_version() -> str:
    return importlib.metadata.version("onnxruntime-genai")


def export_assistant(
    files: ModelFiles,
    out: Path,
    precision: str = "int4",
    *,
    progress: bool | None = False,
    trust_remote_code: bool = False,
) -> Path:
    """Write `files` as an ONNX folder at `out`, and return `out`.

    An earlier export at `out` is replaced; anything else there is left alone and refused. Raises
    UnsupportedModelError (an architecture that the builder does not know), FailedPreconditionError
    (`out` is taken, the extra is missing), and whatever `load_dense` raises.
    """
    if precision not in PRECISIONS:
        raise InvalidRequestError(
            f"There is no precision {precision!r}. Choose one of {', '.join(PRECISIONS)}.",
            reason="PRECISION_UNKNOWN",
        )
    require_export_extra(files.name)
    _require_free(out)
    make_folder(out.parent)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch:
        built = Path(scratch) / "onnx"
        logger.info("exporting %s to ONNX in %s", files.name, precision)
        _export_into(files, built, precision, progress, trust_remote_code)
        if out.exists():
            shutil.rmtree(out)
        built.rename(out)
    return out


def require_export_extra(name: str) -> None:
    if not can_export():
        raise FailedPreconditionError(
            f"{name} is no ONNX model, and turning it into one needs torch, which is not installed "
            "here. On any machine: `pip install 'anydraft[export]'`, then `anydraft models export "
            f"{name} --output FOLDER`. Copy FOLDER to this machine, and start here with "
            "`--model FOLDER`. (Or install anydraft[export] here.)",
            reason="EXPORT_NEEDED",
        )


def _export_into(
    files: ModelFiles,
    built: Path,
    precision: str,
    progress: bool | None,
    trust_remote_code: bool,
) -> None:
    model, tokenizer = load_dense(
        files, "float32", progress=progress, trust_remote_code=trust_remote_code
    )
    dense_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
    require_room(2 * dense_bytes, built.parent, f"Exporting {files.name}")
    reference = _reference(model, tokenizer)
    config, generation = model.config, model.generation_config
    source = files.folder
    if files.gguf_file is not None:
        # The builder reads dense weights only.
        source = built.parent / "dense"
        with progress_bars(wants_progress(progress)):
            model.save_pretrained(source)
        tokenizer.save_pretrained(source)
    del model
    gc.collect()
    trust = (f"hf_remote={str(trust_remote_code).lower()}",)
    _run_builder(source, built, precision, files.name, trust)
    if not add_tree_inputs(built / EXPORTED_DECODER):
        logger.info("%s is exported to draft chains: its graph cannot be taught trees", files.name)
    tokenizer.save_pretrained(built)
    config.save_pretrained(built)
    # save_pretrained would refuse settings that generate only warns about.
    (built / "generation_config.json").write_text(generation.to_json_string())
    _check(built / EXPORTED_DECODER, reference, precision, files.name)
    manifest = _manifest(files, precision, config, generation)
    (built / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _reference(model: Any, tokenizer: Any) -> _Reference:
    import torch

    token_ids = tokenizer.encode(_PROBE)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([token_ids])).logits[0]
    return _Reference(token_ids, logits.float().numpy())


def _run_builder(
    source: Path, built: Path, precision: str, name: str, options: tuple[str, ...]
) -> None:
    """Build the ONNX folder `built`; int4 falls back to its plain form, see `_INT4_OPTIONS`."""
    if precision == "int4":
        if not _build(source, built, precision, (*options, *_INT4_OPTIONS)):
            return
        logger.info("%s is quantized the plain way, which costs accuracy.", name)
        shutil.rmtree(built, ignore_errors=True)
    output = _build(source, built, precision, options)
    if not output:
        return
    if "NotImplementedError" in output:
        raise UnsupportedModelError(
            f"onnxruntime-genai cannot build {name} ({output.splitlines()[-1]}). Name a repository "
            "or folder that holds its ONNX export (many are published as onnx-community/...), or "
            "run the assistant on torch.",
            reason="ARCHITECTURE_UNSUPPORTED",
        )
    raise InternalError(
        f"onnxruntime-genai's builder failed on {name}. The end of its output:\n"
        f"{output[-2000:]}\n"
        "Name an ONNX export of the model instead, or run the assistant on torch.",
        reason="EXPORT_FAILED",
    )


def _build(source: Path, built: Path, precision: str, options: tuple[str, ...]) -> str:
    """Run the builder once; what it printed if it failed, nothing if it did not."""
    command = [sys.executable, "-m", _BUILDER, "-i", str(source), "-o", str(built)]
    command += ["-p", precision, "-e", "cpu", "-c", str(built.parent / "builder-cache")]
    command += ["--extra_options", *_BUILDER_OPTIONS, *options]
    result = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if result.returncode == 0 and (built / EXPORTED_DECODER).is_file():
        return ""
    return result.stdout.decode(errors="replace").strip() or f"exit {result.returncode}"


def _check(decoder: Path, reference: _Reference, precision: str, name: str) -> None:
    """Raise InternalError unless the export's logits are the original's, as far as that can be."""
    import numpy as np

    genai = json.loads((decoder.parent / "genai_config.json").read_text())
    head_size = genai["model"]["decoder"]["head_size"]
    expected = reference.logits
    try:
        logits = onnx_logits(decoder, reference.token_ids, head_size)
    except Exception as error:
        # onnxruntime's own exceptions, which share no base: a graph that it refuses to load or run.
        raise InternalError(
            f"onnxruntime cannot run the {precision} export of {name} ({error}). Use another "
            "precision, an ONNX export from the Hub, or torch.",
            reason="EXPORT_UNSOUND",
        ) from error
    if logits.shape != expected.shape or not np.isfinite(logits).all():
        problem = f"shape {logits.shape}, finite {bool(np.isfinite(logits).all())}"
    elif precision == "fp32":
        # Relative to the spread of the logits: their scale differs a lot between models.
        distance = float(np.abs(logits - expected).max() / max(float(expected.std()), 1e-6))
        problem = f"off by {distance:.3g} deviations" if distance > _FP32_TOLERANCE else ""
    else:
        similarity = _similarity(logits, expected)
        problem = f"similarity {similarity:.2f}" if similarity < _LEAST_SIMILARITY else ""
    if problem:
        raise InternalError(
            f"The {precision} export of {name} does not compute what the model does ({problem}). "
            "Use another precision, an ONNX export from the Hub, or torch.",
            reason="EXPORT_UNSOUND",
        )


def _similarity(logits: Any, expected: Any) -> float:
    """Mean cosine over the positions, each position's mean taken out."""
    import numpy as np

    left = logits - logits.mean(axis=-1, keepdims=True)
    right = expected - expected.mean(axis=-1, keepdims=True)
    norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    return float(((left * right).sum(axis=-1) / np.maximum(norms, 1e-9)).mean())


def _manifest(files: ModelFiles, precision: str, config: Any, generation: Any) -> dict[str, Any]:
    ends = generation.eos_token_id
    return {
        "schema": 1,
        "model": files.name,
        "sha256": files.sha256,
        "licence": files.licence,
        "precision": precision,
        "context_length": getattr(config, "max_position_embeddings", None),
        "eos_token_ids": ends if isinstance(ends, list) else [] if ends is None else [ends],
        "versions": {
            "anydraft": VERSION,
            **{
                package: importlib.metadata.version(package)
                for package in ("onnxruntime-genai", "transformers", "torch")
            },
        },
    }


def _require_free(out: Path) -> None:
    taken = out.exists() and not (out / MANIFEST).is_file()
    if taken and (not out.is_dir() or any(out.iterdir())):
        raise FailedPreconditionError(
            f"{out} is there and is not an export of anydraft. Name another folder, or remove it.",
            reason="OUTPUT_TAKEN",
        )
