"""Fixtures of the text tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from anydraft.text import TextTokenizer
from tests.text import cases


@pytest.fixture(scope="session")
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    """The tokenizer that the test's parameter names (`indirect=True`): one of cases.ALL."""
    if request.param in cases.WITH_WEIGHTS:
        return cases.load_folder(request.getfixturevalue("real_folder")(request.param))
    return cases.load(request.param)


@pytest.fixture(scope="session")
def real_chat_tokenizer(real_folder: Callable[[str], Path]) -> Callable[[str], Any]:
    """Called with a registry name: the transformers tokenizer, chat template included."""
    from transformers import AutoTokenizer

    return cache(lambda name: AutoTokenizer.from_pretrained(real_folder(name)))
