"""Real models, each fetched and loaded once a test run."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from anydraft.models import load_dense, resolve_model
from anydraft.models.loading import load_tokenizer

# A shared machine stalls now and then; that is no failure of what is tested.
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")


@pytest.fixture(scope="session")
def real_model() -> Callable[[str], tuple[Any, Any]]:
    """Called with a registry name: the transformers model in fp32, and its tokenizer."""
    import torch

    @cache
    def load(name: str) -> tuple[Any, Any]:
        return load_dense(resolve_model(name), torch.float32, "cpu")

    return load


@pytest.fixture(scope="session")
def real_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Called with a registry name: a folder with the model's tokenizer.json."""

    @cache
    def save(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        load_tokenizer(resolve_model(name)).save_pretrained(folder)
        return folder

    return save
