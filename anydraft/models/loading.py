"""From files to a transformers model: dense weights, whatever they were stored as.

The only part of this package, with `export`, that imports torch, and only when it is called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anydraft.errors import (
    AnydraftError,
    FailedPreconditionError,
    NotFoundError,
    ResourceExhaustedError,
    UnsupportedModelError,
)
from anydraft.models import gguf
from anydraft.models.files import ModelFiles
from anydraft.models.progress import wants_progress

if TYPE_CHECKING:
    import torch


def load_dense(
    files: ModelFiles,
    dtype: torch.dtype | str,
    device_map: Any | None = None,
    *,
    progress: bool | None = False,
) -> tuple[Any, Any]:
    """The model, in evaluation mode, and its transformers tokenizer.

    `dtype` as transformers takes it (`torch.bfloat16`, "float32", "auto"); GGUF weights are
    dequantized in fp32 and then rounded to it. The model's generation_config names every id that
    ends an answer. Code that comes with a model is never run.

    Raises UnsupportedModelError (architecture, layout), FailedPreconditionError (files that do not
    fit together, a package that is missing), NotFoundError, ResourceExhaustedError (memory).
    """
    if files.onnx_file is not None:
        raise UnsupportedModelError(
            f"{files.name} is an ONNX model, and dense weights are needed here. Name the "
            "repository or folder with its safetensors, or a GGUF file.",
            reason="MODEL_FORMAT_UNKNOWN",
        )
    _require_transformers()
    show = wants_progress(progress)
    with _mapped_errors(files), progress_bars(show):
        if files.gguf_file is None:
            return _load_folder(files.folder, dtype, device_map, files.name)
        with gguf.read_once(show):
            return _load_gguf(files, files.gguf_file, dtype, device_map)


def load_tokenizer(files: ModelFiles) -> Any:
    """The transformers tokenizer of a model, without its weights. Raises as `load_dense` does."""
    _require_transformers()
    with _mapped_errors(files):
        if files.gguf_file is None:
            return _load_tokenizer(files.folder, files.name)
        with gguf.read_once(False):
            return _load_gguf_tokenizer(files, files.gguf_file)


def _load_folder(
    folder: Path, dtype: torch.dtype | str, device_map: Any, name: str
) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM

    tokenizer = _load_tokenizer(folder, name)
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, device_map=device_map, local_files_only=True
    )
    _require_same_vocabulary(model, tokenizer, name)
    return model.eval(), tokenizer


def _load_gguf(
    files: ModelFiles, gguf_file: str, dtype: torch.dtype | str, device_map: Any
) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, GgufConfig

    tokenizer = _load_gguf_tokenizer(files, gguf_file)
    model: Any = AutoModelForCausalLM.from_pretrained(
        files.folder,
        gguf_file=gguf_file,
        quantization_config=GgufConfig(gguf_file=gguf_file, dequantize=True),
        dtype=dtype,
        device_map=device_map,
        local_files_only=True,
    )
    _require_same_vocabulary(model, tokenizer, files.name)
    if ends := gguf.end_token_ids(files.folder / gguf_file):
        model.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]
    return model.eval(), tokenizer


def _load_gguf_tokenizer(files: ModelFiles, gguf_file: str) -> Any:
    tokenizer = _load_tokenizer(files.folder, files.name, gguf_file=gguf_file)
    gguf.repair_tokenizer(tokenizer, files.folder / gguf_file)
    return tokenizer


def _load_tokenizer(folder: Path, name: str, **options: Any) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
    except Exception as error:
        # Broken tokenizer files surface as anything from KeyError to bare Exception.
        raise FailedPreconditionError(
            f"The tokenizer of {name} in {folder} cannot be loaded ({_first_line(error)}). "
            "Download tokenizer.json and tokenizer_config.json again.",
            reason="TOKENIZER_BROKEN",
        ) from error
    if not getattr(tokenizer, "is_fast", False):
        raise UnsupportedModelError(
            f"{name} has only a tokenizer in Python ({type(tokenizer).__name__}), whose text "
            "cannot be followed byte by byte. Add its tokenizer.json.",
            reason="TOKENIZER_UNSUPPORTED",
        )
    return tokenizer


def _require_same_vocabulary(model: Any, tokenizer: Any, name: str) -> None:
    rows = model.get_input_embeddings().num_embeddings
    # Without added tokens: several tokenizers add a padding token that their model never learnt.
    vocabulary = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    highest = max(vocabulary.values(), default=-1)
    if highest >= rows:
        raise FailedPreconditionError(
            f"The tokenizer of {name} has ids up to {highest}, but the model only {rows} of them: "
            "they belong to different models. Download both again, from one place.",
            reason="TOKENIZER_MISMATCH",
        )


def _require_transformers() -> None:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise FailedPreconditionError(
            f"Loading dense weights needs {error.name}. Run `pip install 'anydraft[verify]'`.",
            reason="PACKAGE_MISSING",
        ) from error


@contextlib.contextmanager
def _mapped_errors(files: ModelFiles) -> Iterator[None]:
    import torch

    where = files.folder / files.gguf_file if files.gguf_file else files.folder
    try:
        yield
    except AnydraftError:
        raise
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise ResourceExhaustedError(
            f"{files.name} does not fit into memory ({_first_line(error)}). Choose a smaller "
            "model or dtype, or more devices.",
            reason="MEMORY_FULL",
        ) from error
    except ImportError as error:
        raise FailedPreconditionError(
            f"{files.name} needs a package that is not installed ({_first_line(error)}).",
            reason="PACKAGE_MISSING",
        ) from error
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{files.name}: a file is missing in {where} ({_first_line(error)}). Download the "
            "model again.",
            reason="MODEL_FILES_MISSING",
        ) from error
    except (ValueError, KeyError, NotImplementedError) as error:
        # What transformers raises for a model_type or a GGUF architecture that it does not know.
        raise UnsupportedModelError(
            f"transformers cannot load {files.name} from {where} as a causal language model "
            f"({_first_line(error)}). Name another model, or update transformers.",
            reason="ARCHITECTURE_UNSUPPORTED",
        ) from error
    except (OSError, RuntimeError, _safetensors_error()) as error:
        raise FailedPreconditionError(
            f"The files of {files.name} in {where} are damaged or do not fit together "
            f"({_first_line(error)}). Download the model again.",
            reason="MODEL_FILE_DAMAGED",
        ) from error


@contextlib.contextmanager
def progress_bars(show: bool) -> Iterator[None]:
    """Whether transformers shows its bars within it."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    if show or not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _safetensors_error() -> type[Exception]:
    from safetensors import SafetensorError

    error: type[Exception] = SafetensorError
    return error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
