"""A random Llama of a few thousand weights, as a transformers folder and as a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import tokenizers_zoo

HEADS, KEY_HEADS, LAYERS = 4, 2, 2


def llama(intermediate_size: int = 128, **settings: Any) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizers_zoo.build("gpt2").get_vocab_size(),
        hidden_size=64,
        intermediate_size=intermediate_size,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=2,
        **settings,
    )
    return LlamaForCausalLM(config).eval()


def tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizers_zoo.build("gpt2"), eos_token="<|im_end|>"
    )


def save_dense(folder: Path) -> Path:
    from transformers.utils import logging

    logging.disable_progress_bar()
    llama().save_pretrained(folder)
    logging.enable_progress_bar()
    tokenizer().save_pretrained(folder)
    return folder


def save_gguf(
    path: Path,
    pre_tokenizer: str = "smollm",
    intermediate_size: int = 128,
    *,
    settings: dict[str, Any] | None = None,
    say: Callable[[Any], None] = lambda writer: None,
    tensors: dict[str, Any] | None = None,
    leave_out: str = "",
    add_bos: bool | None = False,
    spell: dict[str, str] | None = None,
) -> Path:
    """As llama.cpp's converter writes it, with fp32 weights.

    `say` adds keys through the writer, `tensors` are added to those of the model, and the one named
    `leave_out` is left out. `spell` writes special and added tokens in another way."""
    import gguf

    model, backend = llama(intermediate_size, **(settings or {})), tokenizers_zoo.build("gpt2")
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // HEADS)
    writer.add_vocab_size(config.vocab_size)
    write_tokenizer(writer, backend, pre_tokenizer, spell or {})
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, LAYERS)
    for name, weights in model.state_dict().items():
        stem, suffix = name.rsplit(".", 1)
        data = weights.numpy()
        if stem.endswith(("q_proj", "k_proj")):
            data = _interleave(data, HEADS if stem.endswith("q_proj") else KEY_HEADS)
        if (named := f"{names.get_name(stem)}.{suffix}") != leave_out:
            writer.add_tensor(named, data)
    for named, data in (tensors or {}).items():
        writer.add_tensor(named, data)
    say(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tokenizer(writer: Any, backend: Any, pre_tokenizer: str, spell: dict[str, str]) -> None:
    import json

    import gguf

    vocabulary = backend.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    merges = json.loads(backend.to_str())["model"]["merges"]
    types = dict.fromkeys(tokenizers_zoo.SPECIAL, gguf.TokenType.CONTROL)
    types |= dict.fromkeys(tokenizers_zoo.ADDED, gguf.TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre_tokenizer)
    writer.add_token_list([spell.get(token, token) for token in tokens])
    writer.add_token_types([types.get(token, gguf.TokenType.NORMAL) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(vocabulary["</s>"])
    writer.add_eot_token_id(vocabulary["<|im_end|>"])


def _interleave(weights: Any, heads: int) -> Any:
    """llama.cpp rotates neighbouring pairs where transformers rotates halves."""
    rows, columns = weights.shape
    halves = weights.reshape(heads, 2, rows // heads // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns).copy()
