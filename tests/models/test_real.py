"""The registry's smallest model, from its source to a token out of ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import Tokenizer

from anydraft.models import load_dense, resolve_assistant, resolve_model
from anydraft.models.loading import load_tokenizer
from anydraft.models.onnx_check import onnx_logits

pytestmark = pytest.mark.real

NAME = "smollm2-135m-instruct"
HEAD_SIZE = 64


def test_the_assistant_writes_what_is_likely() -> None:
    folder = resolve_assistant(NAME)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode("The capital of France is").ids
    best = int(np.argmax(onnx_logits(folder / "model.onnx", ids, HEAD_SIZE)[-1]))
    assert tokenizer.decode([best]) == " Paris"


def test_the_dense_model_ends_a_chat_answer() -> None:
    model, tokenizer = load_dense(resolve_model(NAME), "float32")
    ends = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert model.generation_config.eos_token_id == ends


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        (NAME, "a\n\n1", ["a", "ĊĊ", "1"]),
        (NAME, "x =  12", ["x", "Ġ=", "ĠĠ", "1", "2"]),
        ("qwen2.5-coder-0.5b-instruct", "x 12", ["x", "Ġ", "1", "2"]),
        ("gemma-3-270m", "Hi 12", ["<bos>", "Hi", "▁", "1", "2"]),
    ],
)
def test_tokenizers_from_gguf_cut_as_the_originals_do(
    name: str, text: str, pieces: list[str]
) -> None:
    tokenizer = load_tokenizer(resolve_model(name))
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(text)) == pieces
