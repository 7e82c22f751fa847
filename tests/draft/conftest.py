"""Assistants small enough to build in a test."""

from __future__ import annotations

import contextlib
import gc
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anydraft.text import TextTokenizer
from draft_node.drafting_thread import DraftingThread
from tests import tokenizers_zoo

CONTEXT_TOKENS = 96


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(tokenizers_zoo.build("gpt2"))


@pytest.fixture(scope="session")
def llama() -> Any:
    """A random Llama in fp32, on transformers."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    backend = tokenizers_zoo.build("gpt2")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=backend.get_vocab_size(),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT_TOKENS,
        bos_token_id=backend.token_to_id("<s>"),
        eos_token_id=backend.token_to_id("</s>"),
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).float().eval()


@pytest.fixture(scope="session")
def genai_folder(llama: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, as onnxruntime-genai exports it."""
    from onnxruntime_genai.models.builder import create_model, parse_extra_options
    from transformers import PreTrainedTokenizerFast

    dense, out = tmp_path_factory.mktemp("dense"), tmp_path_factory.mktemp("genai")
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizers_zoo.build("gpt2"), bos_token="<s>", eos_token="</s>"
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        llama.save_pretrained(dense)
        fast.save_pretrained(dense)
        where = (None, str(dense), str(out), "fp32", "cpu", str(dense / "cache"))
        create_model(*where, **parse_extra_options(*where, []))
    return out


@pytest.fixture
def worker() -> Any:
    worker = DraftingThread()
    yield worker
    worker.close()


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only reference counts free anything: what is gone was given back by somebody."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
