"""Tiny random models of other architectures than Llama, written as llama.cpp's converter does.

Settings differ from the defaults of transformers wherever a GGUF file can say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests import tokenizers_zoo
from tests.models import tiny

LAYERS = 2
_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
}
_GPT2: dict[str, Any] = {
    "n_embd": 64,
    "n_layer": LAYERS,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": None,
    "eos_token_id": 1,
}
_NARROW_HEADS = {"attention.key_length": 8, "attention.value_length": 8}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_EXPERT_KEYS = {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32}
_LONG = np.linspace(2, 9, 8, dtype=np.float32)
_SHORT = np.linspace(1, 2, 8, dtype=np.float32)
_RMS, _EPS = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


def _rope(base: float, **more: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base, **more}}


@dataclass(frozen=True)
class Case:
    family: str
    """Of its classes in transformers."""
    settings: dict[str, Any]
    keys: dict[str, Any]
    """Beside those that all have, without the architecture's prefix."""
    common: dict[str, Any] = field(default_factory=lambda: _COMMON)
    tensors: dict[str, Any] = field(default_factory=dict)
    architecture: str = ""
    """Where it is not the name of the case."""

    def build(self) -> Any:
        import torch
        import transformers

        torch.manual_seed(0)
        size = tokenizers_zoo.build("gpt2").get_vocab_size()
        config = getattr(transformers, f"{self.family}Config")(
            vocab_size=size, **self.common, **self.settings
        )
        # A larger spread than the usual 0.02: what is wrong shows.
        config.initializer_range = 0.3
        model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.data += 0.1 * torch.randn_like(parameter)
        return model


CASES = {
    "qwen2": Case("Qwen2", _rope(500.0), {_RMS: 1e-3, "rope.freq_base": 500.0}),
    "qwen3": Case("Qwen3", {"head_dim": 8}, {_RMS: 1e-3, **_NARROW_HEADS}),
    "phi3": Case(
        "Phi3",
        {"sliding_window": 9, **_rope(500.0, partial_rotary_factor=0.5)},
        {
            _RMS: 1e-3,
            "rope.freq_base": 500.0,
            "rope.dimension_count": 8,
            "attention.sliding_window": 9,
        },
    ),
    "phi3 long": Case(
        "Phi3",
        {
            "original_max_position_embeddings": 64,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10_000.0,
                "long_factor": _LONG.tolist(),
                "short_factor": _SHORT.tolist(),
                "attention_factor": 1.25,
                "original_max_position_embeddings": 64,
            },
        },
        {
            _RMS: 1e-3,
            "rope.dimension_count": 16,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.attn_factor": 1.25,
        },
        tensors={"rope_factors_long.weight": _LONG, "rope_factors_short.weight": _SHORT},
        architecture="phi3",
    ),
    "gemma2": Case(
        "Gemma2",
        {
            "head_dim": 8,
            "sliding_window": 9,
            "query_pre_attn_scalar": 8,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 2.0,
        },
        {
            _RMS: 1e-3,
            **_NARROW_HEADS,
            "attention.sliding_window": 9,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 2.0,
        },
    ),
    "gemma3": Case(
        "Gemma3Text",
        {
            "head_dim": 8,
            "sliding_window": 9,
            "query_pre_attn_scalar": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        {
            _RMS: 1e-3,
            **_NARROW_HEADS,
            "rope.freq_base": 1e6,
            "attention.sliding_window": 9,
            "attention.sliding_window_pattern": 2,
        },
    ),
    "stablelm": Case(
        "StableLm",
        {},
        {_EPS: 1e-3, "rope.dimension_count": 4, "use_parallel_residual": False},
    ),
    "starcoder2": Case("Starcoder2", _rope(500.0), {_EPS: 1e-3, "rope.freq_base": 500.0}),
    "nemotron": Case("Nemotron", {"head_dim": 16}, {_EPS: 1e-3, "rope.dimension_count": 8}),
    "gpt2": Case("GPT2", {}, {_EPS: 1e-3, "feed_forward_length": 256}, _GPT2),
    "qwen2moe": Case(
        "Qwen2Moe",
        {**_EXPERTS, "shared_expert_intermediate_size": 48},
        {_RMS: 1e-3, **_EXPERT_KEYS, "expert_shared_feed_forward_length": 48},
    ),
    "qwen3moe": Case(
        "Qwen3Moe",
        {**_EXPERTS, "head_dim": 8, "norm_topk_prob": True},
        {_RMS: 1e-3, **_EXPERT_KEYS, **_NARROW_HEADS},
    ),
}


def save(name: str, path: Path) -> Any:
    """Write the file of a case and return the model that it was made from."""
    import gguf

    case = CASES[name]
    architecture = case.architecture or name
    model = case.build()
    config = model.config
    for epsilon in (
        "rms_norm_eps",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "norm_epsilon",
        "norm_eps",
    ):
        if hasattr(config, epsilon):
            _set_epsilon(model, epsilon, 1e-3)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    keys = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": LAYERS,
        "attention.head_count": config.num_attention_heads,
    }
    if case.common is _COMMON:
        keys |= {"feed_forward_length": 96, "attention.head_count_kv": 2}
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
    }
    for key, value in {**keys, **case.keys}.items():
        add[type(value)](f"{architecture}.{key}", value)
    tiny.write_tokenizer(writer, tokenizers_zoo.build("gpt2"), "smollm", {})
    for tensor, weights in (*_tensors(architecture, model), *case.tensors.items()):
        writer.add_tensor(tensor, np.ascontiguousarray(weights))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _set_epsilon(model: Any, name: str, epsilon: float) -> None:
    setattr(model.config, name, epsilon)
    for module in model.modules():
        for attribute in ("eps", "variance_epsilon"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, epsilon)


def _tensors(architecture: str, model: Any) -> Iterator[tuple[str, Any]]:
    import gguf

    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[architecture], LAYERS)
    for name, tensor in model.state_dict().items():
        weights = tensor.numpy()
        stem, suffix = name.rsplit(".", 1)
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj"):
            layer = name.split(".")[2]
            gate, up = np.split(weights, 2, axis=1)
            yield f"blk.{layer}.ffn_gate_exps.weight", gate
            yield f"blk.{layer}.ffn_up_exps.weight", up
            continue
        if name.endswith("experts.down_proj"):
            yield f"blk.{name.split('.')[2]}.ffn_down_exps.weight", weights
            continue
        if name.endswith("shared_expert_gate.weight"):
            weights = weights[0]
        if architecture in ("gemma2", "gemma3", "nemotron") and name.endswith("norm.weight"):
            weights = weights + 1
        if architecture == "gpt2" and suffix == "weight" and ".c_" in name:
            weights = weights.T
        yield f"{names.get_name(stem)}.{suffix}", weights
