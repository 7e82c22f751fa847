"""Fixtures of the text tests."""

from __future__ import annotations

import pytest
from hypothesis import settings

from anydraft.text import TextTokenizer
from tests.text import cases

# A shared machine stalls now and then; that is no failure of the text rules.
settings.register_profile("text", deadline=None)
settings.load_profile("text")


@pytest.fixture(scope="session")
def tokenizer(request: pytest.FixtureRequest) -> TextTokenizer:
    """The tokenizer that the test's parameter names (`indirect=True`): one of cases.ALL."""
    return cases.load(request.param)
