"""Tiny random targets of many architectures, built in the test, all in fp32.

Windows are shorter than the texts of the tests, so that every text crosses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

VOCABULARY = 600
"""More rows than the tokenizers of `tokenizers_zoo` have ids: padded, as many real ones are."""
WINDOW = 9

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
_HYBRID = ["sliding_attention", "full_attention"]
_EXPERTS = {"num_experts_per_tok": 2}


def _config(name: str, **values: Any) -> PreTrainedConfig:
    return getattr(transformers, f"{name}Config")(**values)


def _common(name: str, **extra: Any) -> PreTrainedConfig:
    return _config(name, **{**_COMMON, **extra})


EXACT_RAGGED: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: _common("Llama"),
    "qwen2": lambda: _common("Qwen2"),
    "qwen3": lambda: _common("Qwen3", head_dim=8),
    "mistral": lambda: _common("Mistral", sliding_window=WINDOW),
    "gemma2": lambda: _common(
        "Gemma2", head_dim=8, sliding_window=WINDOW, query_pre_attn_scalar=8, layer_types=_HYBRID
    ),
    "gemma3": lambda: _common(
        "Gemma3Text",
        head_dim=8,
        sliding_window=WINDOW,
        query_pre_attn_scalar=8,
        layer_types=_HYBRID,
    ),
    "mixtral": lambda: _common("Mixtral", num_local_experts=4, **_EXPERTS),
    "qwen3_moe": lambda: _common(
        "Qwen3Moe", head_dim=8, num_experts=4, moe_intermediate_size=16, **_EXPERTS
    ),
    "phi3": lambda: _common("Phi3"),
    "starcoder2": lambda: _common("Starcoder2", sliding_window=WINDOW),
    "gpt2": lambda: _config("GPT2", **_GPT2),
    "gpt_bigcode": lambda: _config("GPTBigCode", **_GPT2),
    "gpt_neox": lambda: _common("GPTNeoX"),
    "gpt_oss": lambda: _common(
        "GptOss",
        head_dim=8,
        sliding_window=WINDOW,
        num_local_experts=4,
        layer_types=_HYBRID,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        **_EXPERTS,
    ),
    "stablelm": lambda: _common("StableLm"),
}
"""The ragged engine must prove itself exact on these."""

EXACT_PER_SESSION: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama4": lambda: _common(
        "Llama4Text",
        head_dim=8,
        attention_chunk_size=WINDOW,
        num_local_experts=2,
        num_experts_per_tok=1,
        interleave_moe_layer_step=1,
        intermediate_size_mlp=48,
    ),
    "bloom": lambda: _config(
        "Bloom",
        vocab_size=VOCABULARY,
        hidden_size=32,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    ),
}
"""Ragged attention is wrong on these, silently or not; they must be served the careful way."""

REFUSED: dict[str, Callable[[], PreTrainedConfig]] = {
    "jamba": lambda: _common(
        "Jamba", num_experts=2, mamba_d_state=4, use_mamba_kernels=False, **_EXPERTS
    ),
}
"""Recurrent state: nothing can be rolled back."""

ALL = {**EXACT_RAGGED, **EXACT_PER_SESSION, **REFUSED}


def build(name: str, seed: int = 0) -> PreTrainedModel:
    """The model in fp32 on the CPU, with weights spread so that its answers do not degenerate."""
    torch.manual_seed(seed)
    config = ALL[name]()
    # A larger spread than the usual 0.02: logits then differ by far more than rounding.
    config.initializer_range = 0.3
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    model.generation_config.pad_token_id = 2
    return model
