"""From files to a transformers model: dense weights, whatever they were stored as.

The only part of this package, with `export`, that imports torch, and only when it is called.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
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
from anydraft.models.devices import require_transformers
from anydraft.models.files import ModelFiles
from anydraft.models.gguf_tokenizer import end_token_ids, repair_tokenizer
from anydraft.models.progress import wants_progress

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


def load_dense(
    files: ModelFiles,
    dtype: torch.dtype | str,
    device_map: Any | None = None,
    *,
    progress: bool | None = False,
    trust_remote_code: bool = False,
) -> tuple[Any, Any]:
    """The model, in evaluation mode, and its transformers tokenizer.

    `dtype` as transformers takes it (`torch.bfloat16`, "float32", "auto"); GGUF weights are
    dequantized in fp32 and then rounded to it. The model's generation_config names every id that
    ends an answer. Code that comes with a model is run only with `trust_remote_code`, and nobody is
    ever asked; pickled weights are not read at all.

    Raises UnsupportedModelError (architecture, layout, code), FailedPreconditionError (files that
    do not fit together, a package that is missing), NotFoundError, ResourceExhaustedError (memory).
    """
    if files.onnx_file is not None:
        raise UnsupportedModelError(
            f"{files.name} is an ONNX model, and dense weights are needed here. Name the "
            "repository or folder with its safetensors, or a GGUF file.",
            reason="MODEL_FORMAT_UNKNOWN",
        )
    require_transformers()
    show = wants_progress(progress)
    with _mapped_errors(files), progress_bars(show):
        if files.gguf_file is None:
            return _load_folder(files, dtype, device_map, trust_remote_code)
        with gguf.read_once(show):
            return _load_gguf(files, files.gguf_file, dtype, device_map)


def load_tokenizer(files: ModelFiles, *, trust_remote_code: bool = False) -> Any:
    """The transformers tokenizer of a model, without its weights. Raises as `load_dense` does."""
    require_transformers()
    with _mapped_errors(files):
        if files.gguf_file is None:
            return _load_tokenizer(files.folder, files.name, trust_remote_code)
        with gguf.read_once(False):
            return _load_gguf_tokenizer(files, files.gguf_file)


def _load_folder(
    files: ModelFiles, dtype: torch.dtype | str, device_map: Any, trust_remote_code: bool
) -> tuple[Any, Any]:
    import transformers

    tokenizer = _load_tokenizer(files.folder, files.name, trust_remote_code)
    logger.info("loading the weights of %s", files.name)
    auto_model: Any = transformers.AutoModelForCausalLM
    model, loading = auto_model.from_pretrained(
        files.folder,
        dtype=dtype,
        device_map=device_map,
        local_files_only=True,
        trust_remote_code=trust_remote_code,
        use_safetensors=True,
        output_loading_info=True,
    )
    _require_all_weights(loading, files.name)
    _require_same_vocabulary(model, tokenizer, files.name)
    return model.eval(), tokenizer


def _load_gguf(
    files: ModelFiles, gguf_file: str, dtype: torch.dtype | str, device_map: Any
) -> tuple[Any, Any]:
    import transformers

    path = files.folder / gguf_file
    tokenizer = _load_gguf_tokenizer(files, gguf_file)
    config = transformers.AutoConfig.from_pretrained(
        files.folder, gguf_file=gguf_file, local_files_only=True, trust_remote_code=False
    )
    gguf.obey(config, path)
    logger.info("loading the weights of %s", files.name)
    auto_model: Any = transformers.AutoModelForCausalLM
    model, loading = auto_model.from_pretrained(
        files.folder,
        config=config,
        gguf_file=gguf_file,
        quantization_config=transformers.GgufConfig(gguf_file=gguf_file, dequantize=True),
        dtype=dtype,
        device_map=device_map,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    gguf.require_every_tensor(model, loading, path)
    _require_same_vocabulary(model, tokenizer, files.name)
    if ends := end_token_ids(tokenizer, gguf.read_fields(path)):
        model.generation_config.eos_token_id = ends if len(ends) > 1 else ends[0]
    for field, value in gguf.recommended_sampling(path).items():
        setattr(model.generation_config, field, value)
    return model.eval(), tokenizer


def _load_gguf_tokenizer(files: ModelFiles, gguf_file: str) -> Any:
    tokenizer = _load_tokenizer(files.folder, files.name, False, gguf_file=gguf_file)
    repair_tokenizer(tokenizer, gguf.read_fields(files.folder / gguf_file), gguf_file)
    return tokenizer


def _load_tokenizer(folder: Path, name: str, trust_remote_code: bool, **options: Any) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code, **options
        )
    except Exception as error:
        if _asks_for_trust(error):
            raise _remote_code_refused(name) from error
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


def _require_all_weights(loading: Mapping[str, Any], name: str) -> None:
    """transformers would make up what the files lack, and only log it."""
    if missing := sorted(loading["missing_keys"]):
        raise FailedPreconditionError(
            f"{name} has no weights for {missing[0]} and {len(missing) - 1} more parameters, so "
            "its answers would be random. Download the model again, or name another copy of it.",
            reason="WEIGHTS_MISSING",
        )


def _asks_for_trust(error: BaseException) -> bool:
    """Whether transformers refused to run code that came with the model."""
    return isinstance(error, ValueError) and "trust_remote_code=True" in str(error)


def _remote_code_refused(name: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{name} comes with code of its own, which is not run. Read that code, and start again "
        "with --trust-remote-code if you trust it; or name a model that transformers knows by "
        "itself.",
        reason="REMOTE_CODE_REFUSED",
    )


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
            f"{files.name} needs a package that is not installed ({_first_line(error)}). Run "
            f"{_install(error.name)}.",
            reason="PACKAGE_MISSING",
        ) from error
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{files.name}: a file is missing in {where} ({_first_line(error)}). Download the "
            "model again.",
            reason="MODEL_FILES_MISSING",
        ) from error
    except (ValueError, KeyError, NotImplementedError) as error:
        if _asks_for_trust(error):
            raise _remote_code_refused(files.name) from error
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


def _install(package: str | None) -> str:
    ours = {"accelerate", "gguf", "safetensors", "sentencepiece", "tokenizers", None}
    return "`pip install 'anydraft[verify]'`" if package in ours else f"`pip install {package}`"


@contextlib.contextmanager
def progress_bars(show: bool) -> Iterator[None]:
    """Whether transformers shows its bars within it."""
    from transformers.utils import logging as transformers_logging

    bars: Any = transformers_logging
    if show or not bars.is_progress_bar_enabled():
        yield
        return
    bars.disable_progress_bar()
    try:
        yield
    finally:
        bars.enable_progress_bar()


def _safetensors_error() -> type[Exception]:
    from safetensors import SafetensorError

    error: type[Exception] = SafetensorError
    return error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
