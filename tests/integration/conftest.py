"""What several integration tests start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import models_zoo, tokenizers_zoo


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target on disk, tokenizer and all."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("target")
    models_zoo.build("llama").save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers_zoo.build("gpt2"))
    tokenizer.save_pretrained(folder)
    return folder
