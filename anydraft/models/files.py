"""What a model on disk looks like: which files are its weights, and whether any is missing.

Three layouts are known. *dense*: config.json, safetensors, a tokenizer, as transformers
writes them. *gguf*: one file that holds everything. *onnx*: a decoder and a tokenizer,
as onnxruntime-genai (`model.onnx`) or transformers.js (`onnx/model_q4.onnx`) lay them out.
The same rules serve lists of names from the Hub and folders on disk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from anydraft.errors import FailedPreconditionError, NotFoundError, UnsupportedModelError

Layout = Literal["dense", "onnx"]

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")

_DENSE_WEIGHTS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
# Spellings of a precision in file or folder names, best first. transformers.js: model_q4.onnx,
# model_quantized.onnx (8 bits), model.onnx; onnxruntime-genai: cpu-int4-rtn-block-32/model.onnx.
_ONNX_SPELLINGS = {
    "int4": ("int4", "q4", "bnb4"),
    "int8": ("int8", "quantized", "uint8", "q8"),
    "fp32": ("fp32",),
}
_OTHER_SPELLINGS = ("fp16", "q4f16", "bf16", "cuda", "gpu", "directml", "dml", "webgpu")
# How far above an ONNX file its tokenizer may lie.
_LEVELS = 3
_GIT_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class ModelFiles:
    """A model whose files are on this machine."""

    name: str
    """As the user named it, without the path where that was one."""
    folder: Path
    gguf_file: str | None
    """Name inside `folder` of the one file that holds everything, for the gguf layout."""
    licence: str | None
    """As its publisher words it; None where nobody said."""
    onnx_file: str | None = None
    """Path inside `folder` of the decoder, for the onnx layout."""
    sha256: str | None = None
    """Hash of the file, where it is known and was verified."""


def display_name(name: str) -> str:
    """What others may see of a name: of a path only its last part, without .gguf or .onnx."""
    path = Path(name).expanduser()
    if not path.exists() and not name.startswith(("/", "./", "../", "~")):
        return name
    last = path.resolve().name
    return last.removesuffix(".gguf").removesuffix(".onnx") or "model"


def inspect_local(path: Path, name: str, *, prefer: Layout, precision: str | None) -> ModelFiles:
    """The model at a path that exists, file or folder.

    `prefer` decides where a folder holds both dense weights and ONNX; `precision` which of several
    ONNX files. Raises NotFoundError that names the files which are missing, UnsupportedModelError.
    """
    if path.is_file():
        if path.suffix == ".onnx":
            return _onnx_model(_tokenizer_folder(path.parent), path, name)
        return gguf_model(path, name)
    names = [file.relative_to(path).as_posix() for file in _files_below(path)]
    has_dense = any(_DENSE_WEIGHTS.fullmatch(file) for file in names)
    onnx = choose_onnx(names, precision)
    if onnx and (prefer == "onnx" or not has_dense):
        decoder = path / onnx
        if named := named_decoder(decoder.parent):
            decoder = named
        return _onnx_model(_tokenizer_folder(decoder.parent, stop=path), decoder, name)
    if has_dense:
        return dense_model(path, name)
    ggufs = [file for file in names if file.endswith(".gguf")]
    if len(ggufs) == 1:
        return gguf_model(path / ggufs[0], name)
    if ggufs:
        raise NotFoundError(
            f"{path} holds several GGUF files. Name one of them: {', '.join(sorted(ggufs))}.",
            reason="MODEL_AMBIGUOUS",
        )
    refuse_pickles(names, name)
    raise NotFoundError(
        f"{path} holds no weights. Expected model.safetensors (or model-*-of-*.safetensors with "
        "model.safetensors.index.json) beside config.json and tokenizer.json; or an ONNX decoder "
        "such as model.onnx; or one .gguf file.",
        reason="MODEL_FILES_MISSING",
    )


def refuse_pickles(names: Collection[str], name: str) -> None:
    """Raise UnsupportedModelError if there are pickled weights among `names`."""
    pickled = sorted(file for file in names if file.endswith(_PICKLES))
    if pickled:
        raise UnsupportedModelError(
            f"{name} holds its weights as a pickle ({pickled[0]}), which may run code when it is "
            "read, and is not. Name a repository or revision with safetensors, or convert it where "
            "you trust it: AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER, "
            "safe_serialization=True).",
            reason="PICKLED_WEIGHTS",
        )


def gguf_model(path: Path, name: str, licence: str | None = None) -> ModelFiles:
    refuse_pickles([path.name], name)
    if path.suffix != ".gguf":
        raise UnsupportedModelError(
            f"{path} is not a model file. Name a .gguf or .onnx file, or a folder.",
            reason="MODEL_FORMAT_UNKNOWN",
        )
    if _SPLIT_GGUF.search(path.name):
        raise UnsupportedModelError(
            f"{path.name} is one part of a split GGUF. Merge the parts first "
            "(`llama-gguf-split --merge`), or name a repository with dense weights.",
            reason="GGUF_SPLIT",
        )
    _require_content(path)
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise FailedPreconditionError(
                f"{path} is not a GGUF file, whatever its name says. Download it again.",
                reason="MODEL_FILE_DAMAGED",
            )
    return ModelFiles(name=name, folder=path.parent, gguf_file=path.name, licence=licence)


def dense_model(folder: Path, name: str, licence: str | None = None) -> ModelFiles:
    """A transformers folder, all of whose files are there."""
    present = {file.name for file in folder.iterdir() if file.is_file()}
    missing = [] if "config.json" in present else ["config.json"]
    if not present.intersection(TOKENIZER_FILES):
        missing.append("a tokenizer (tokenizer.json)")
    weights = [file for file in sorted(present) if _DENSE_WEIGHTS.fullmatch(file)]
    shards = _indexed_shards(folder, present)
    missing += sorted(shards - present) if shards else []
    if not weights and not shards:
        missing.append("weights (model.safetensors)")
    if missing:
        raise NotFoundError(
            f"{name}: {folder} lacks {', '.join(missing)}. Download the model again, or copy "
            "what is missing there.",
            reason="MODEL_FILES_MISSING",
        )
    for file in shards or weights:
        _require_content(folder / file)
    return ModelFiles(name=name, folder=folder, gguf_file=None, licence=licence)


def choose_onnx(names: Collection[str], precision: str | None) -> str | None:
    """The decoder among `names` (posix paths) that fits `precision` best; None where there is none.

    Without a spelling that fits, a plain `model.onnx` is taken, and then whatever runs on a CPU.
    """
    decoders = [name for name in names if name.endswith(".onnx") and not _is_partial(name)]
    if not decoders:
        return None
    return min(decoders, key=lambda name: (*_onnx_misfit(name, precision), len(name), name))


def onnx_companions(names: Collection[str], decoder: str) -> list[str]:
    """The decoder, its external data, and the small files beside it and in the folders above."""
    folder = PurePosixPath(decoder).parent
    above = PurePosixPath(decoder).parents
    stem = PurePosixPath(decoder).name
    data = re.compile(re.escape(stem) + r"[._]data(_\d+)?")

    def belongs(name: str) -> bool:
        path = PurePosixPath(name)
        if path.parent == folder and (path.name == stem or data.fullmatch(path.name)):
            return True
        return path.parent in above and _is_small(path.name)

    return [name for name in names if belongs(name)]


def dense_companions(names: Collection[str]) -> list[str]:
    """The files of a transformers folder, its code included, which is run only where it is trusted;
    none where it has no safetensors."""
    top = [name for name in names if "/" not in name]
    weights = [name for name in top if _DENSE_WEIGHTS.fullmatch(name)]
    if not weights:
        return []
    return [name for name in top if _is_small(name) or name.endswith(".py")] + weights


def _onnx_model(folder: Path, decoder: Path, name: str) -> ModelFiles:
    if not (folder / "tokenizer.json").is_file():
        raise NotFoundError(
            f"{name}: {folder} lacks tokenizer.json, which an assistant needs beside its ONNX "
            "file. Copy it there from the model's repository.",
            reason="MODEL_FILES_MISSING",
        )
    _require_content(decoder)
    return ModelFiles(
        name=name,
        folder=folder,
        gguf_file=None,
        licence=None,
        onnx_file=decoder.relative_to(folder).as_posix(),
    )


def _tokenizer_folder(folder: Path, stop: Path | None = None) -> Path:
    """`folder` or the nearest above it (up to `stop`) that has tokenizer.json; else `folder`."""
    for candidate in (folder, *list(folder.parents)[:_LEVELS]):
        if (candidate / "tokenizer.json").is_file():
            return candidate
        if candidate == stop:
            break
    return folder


def named_decoder(folder: Path) -> Path | None:
    """The file that genai_config.json in `folder` names, if both are there."""
    try:
        config = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))
        file = folder / config["model"]["decoder"]["filename"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return file if file.is_file() else None


def _onnx_misfit(name: str, precision: str | None) -> tuple[bool, int, int]:
    words = set(re.split(r"[^a-z0-9]+", name.lower().removesuffix(".onnx")))
    # optimum used to write a decoder for the first call only beside the one for all calls.
    first_call_only = {"decoder", "model"} <= words and "merged" not in words
    foreign = len(words.intersection(_OTHER_SPELLINGS))
    for rank, spelling in enumerate(_ONNX_SPELLINGS.get(precision or "", ())):
        if spelling in words:
            return first_call_only, foreign, rank
    named = any(words.intersection(spellings) for spellings in _ONNX_SPELLINGS.values())
    return first_call_only, foreign, 20 if named else 10


def _is_partial(name: str) -> bool:
    """Whether an ONNX file is one part of a model: an encoder, embeddings, a vision tower."""
    stem = PurePosixPath(name).name
    parts = ("encoder", "embed", "vision", "audio", "speech", "decoder_with_past")
    return any(part in stem for part in parts)


def _is_small(name: str) -> bool:
    return name.endswith((".json", ".jinja", ".model", ".txt")) and "onnx" not in name


def _indexed_shards(folder: Path, present: set[str]) -> set[str]:
    index = "model.safetensors.index.json"
    if index not in present:
        return set()
    try:
        return set(json.loads((folder / index).read_text())["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise FailedPreconditionError(
            f"{folder / index} is damaged. Download it again.", reason="MODEL_FILE_DAMAGED"
        ) from error


def _files_below(folder: Path, depth: int = 3) -> Sequence[Path]:
    """Files of a folder and of those in it, hidden ones left out."""
    found: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            found += _files_below(path, depth - 1) if depth else ()
        else:
            found.append(path)
    return found


def _require_content(path: Path) -> None:
    if not path.is_file():
        raise NotFoundError(
            f"There is no file {path}. Check the name.", reason="MODEL_FILES_MISSING"
        )
    with path.open("rb") as file:
        if file.read(len(_GIT_LFS_POINTER)) == _GIT_LFS_POINTER:
            raise FailedPreconditionError(
                f"{path} is only a pointer of git-lfs, not the weights. Run `git lfs pull` there.",
                reason="MODEL_FILE_DAMAGED",
            )
