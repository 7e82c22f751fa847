"""What a GGUF file says about its model, obeyed or refused by name.

transformers reads the keys that it knows for each architecture and passes over the others without
a word, and likewise over tensors. Whatever changes the result is looked at here: a key is written
into the configuration before the model is made, or is known to be neutral, or the file is refused.
llama.cpp's names and defaults count (gguf-py/gguf/constants.py, src/llama-model.cpp).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from anydraft.errors import UnsupportedModelError
from anydraft.models.gguf_rope import ROPE_TENSORS, obey_rope

_EPSILONS = (
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_epsilon",
    "norm_eps",
)
# Keys that are one field of the configuration, under any of these names.
_FIELDS = {
    "vocab_size": ("vocab_size",),
    "context_length": ("max_position_embeddings",),
    "embedding_length": ("hidden_size",),
    "feed_forward_length": ("intermediate_size", "n_inner", "ffn_hidden_size"),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_kv_heads", "num_key_value_heads"),
    "attention.layer_norm_rms_epsilon": _EPSILONS,
    "attention.layer_norm_epsilon": _EPSILONS,
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
    "logit_scale": ("logit_scale",),
    "use_parallel_residual": ("use_parallel_residual",),
    "expert_count": ("num_experts", "num_local_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "expert_weights_norm": ("norm_topk_prob",),
    "expert_weights_scale": ("routed_scaling_factor",),
}
# What a key may say where the configuration has no field for it, because it then changes nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "logit_scale": (0, 1),
    "residual_scale": (0, 1),
    "embedding_scale": (0, 1),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_weights_scale": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "pooling_type": (0,),
}
# Which way experts are weighted (llama_expert_gating_func_type), as transformers has it built in.
_GATING = {"qwen2moe": 1, "qwen3moe": 1, "gpt-oss": 3}
# Notes about how a file was made; no computation reads them.
_NOTES = {"rope.scaling.finetuned", "rope.scaling.original_context_length", "tensor_data_layout"}
# Read by transformers' own code for these architectures.
_BUILT_IN = {
    "qwen35": {"full_attention_interval", "nextn_predict_layers", "rope.dimension_sections"},
    "qwen35moe": {"full_attention_interval", "nextn_predict_layers", "rope.dimension_sections"},
    "lfm2": {"shortconv.l_cache", "attention.head_count_kv"},
    "minimax-m2": {
        "expert_gating_func",
        "expert_feed_forward_length",
        "rope.dimension_count",
    },
    "bloom": {"context_length", "attention.max_alibi_bias"},
}
_WINDOWED = {"gemma2", "gemma3", "gpt-oss", "phi3"}
# Gemma's largest scale queries by the width of the model instead of a head's (LLM_TYPE_27B).
_GEMMA_27B_LAYERS = {"gemma2": 46, "gemma3": 62}
_EXPERT_TENSOR = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down)_exps)\.weight")
# Holds what the rotary base already says.
_OLD_ROPE_TENSOR = re.compile(r"blk\.\d+\.attn_rot_embd(\.weight)?")


def obey_metadata(
    config: Any, facts: Mapping[str, Any], rope_factors: Mapping[str, Any], name: str
) -> None:
    """Make `config`, as transformers read it from the file, say what the file says.

    `facts` are the file's keys and values, `rope_factors` those of its tensors that ROPE_TENSORS
    names. Raises UnsupportedModelError that names what cannot be obeyed.
    """
    architecture = str(facts["general.architecture"])
    _check_kind(facts, name)
    prefix = f"{architecture}."
    left = {key.removeprefix(prefix): facts[key] for key in facts if key.startswith(prefix)}
    for built_in in _BUILT_IN.get(architecture, ()):
        left.pop(built_in, None)
    text = config.get_text_config()
    keys = _Keys(architecture, left, name)
    _obey_layers(keys, text)
    for key, names in _FIELDS.items():
        keys.obey(key, text, names)
    _obey_head_size(keys, text)
    _obey_window(keys, text)
    obey_rope(keys, text, rope_factors)
    keys.finish()


class _Keys:
    """The keys of one architecture, each taken out when it is obeyed."""

    def __init__(self, architecture: str, left: dict[str, Any], name: str) -> None:
        self.architecture = architecture
        self._left = left
        self._name = name

    def take(self, key: str, default: Any = None) -> Any:
        value = self._left.pop(key, default)
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            # One value a layer, all the same.
            return value[0]
        return value

    def obey(self, key: str, config: Any, names: Iterable[str]) -> None:
        """Write a key into the first of these fields that `config` has."""
        value = self.take(key)
        if value is None:
            return
        if isinstance(value, list):
            raise self.refuse(key, value)
        field = next((field for field in names if hasattr(config, field)), None)
        if field is None:
            if value not in _NEUTRAL.get(key, ()) and value != _implied(key, config):
                raise self.refuse(key, value)
        elif key.endswith("softcapping") and value == 0:
            setattr(config, field, None)
        elif getattr(config, field) != value:
            setattr(config, field, value)

    def finish(self) -> None:
        """Raise unless every key that is left is a note or says what is so anyway."""
        for key, value in self._left.items():
            neutral = _NEUTRAL.get(key, ())
            gating = key == "expert_gating_func" and value == _GATING.get(self.architecture)
            if key not in _NOTES and value not in neutral and not gating:
                raise self.refuse(key, value)

    def refuse(self, key: str, value: object) -> UnsupportedModelError:
        return refusal(self._name, f"says {self.architecture}.{key} = {_short(value)}")


def check_tensors(
    names: Collection[str], mapped: Collection[str], missing: Collection[str], name: str
) -> None:
    """Raise UnsupportedModelError naming a tensor that was passed over, or weights that lack one.

    `names` are the file's tensors, `mapped` those that transformers has a place for, `missing`
    parameters of the model for which the file had none.
    """
    passed_over = [
        tensor
        for tensor in names
        if tensor not in mapped
        and tensor not in ROPE_TENSORS
        and not _OLD_ROPE_TENSOR.fullmatch(tensor)
        and not ((experts := _EXPERT_TENSOR.fullmatch(tensor)) and experts[1] in mapped)
    ]
    if passed_over:
        raise refusal(name, f"has the tensor {_several(passed_over)}")
    if missing:
        raise refusal(name, f"has no tensor for {_several(missing)}")


def refusal(name: str, problem: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{name} {problem}, which transformers would pass over, so that answers would be wrong. "
        "Name the model's repository with safetensors, or another GGUF file of it.",
        reason="GGUF_NOT_OBEYED",
    )


def _check_kind(facts: Mapping[str, Any], name: str) -> None:
    kind = facts.get("general.type", "model")
    if kind != "model":
        raise refusal(name, f"is of the type {kind!r} and not a whole model")
    if facts.get("split.count", 0) > 1:
        raise refusal(name, f"is one of {facts['split.count']} parts (split.count)")


def _obey_layers(keys: _Keys, config: Any) -> None:
    blocks = keys.take("block_count")
    # qwen35 counts blocks that predict further tokens, which transformers leaves out.
    predicts_further = keys.architecture.startswith("qwen35")
    if blocks not in (None, config.num_hidden_layers) and not predicts_further:
        raise keys.refuse("block_count", blocks)


def _obey_head_size(keys: _Keys, config: Any) -> None:
    split = config.hidden_size // config.num_attention_heads
    size = keys.take("attention.key_length", split)
    if keys.take("attention.value_length", size) != size:
        raise keys.refuse("attention.value_length", f"other than the key's {size}")
    computed = isinstance(getattr(type(config), "head_dim", None), property)
    if computed and size != split:
        raise keys.refuse("attention.key_length", size)
    if not computed and size != (getattr(config, "head_dim", None) or split):
        # Where a model does not read it, its weights do not fit and it is refused.
        config.head_dim = size
    scale = keys.take("attention.scale", 0)
    if scale and not math.isclose(scale, size**-0.5, rel_tol=1e-5):
        raise keys.refuse("attention.scale", scale)
    if hasattr(config, "query_pre_attn_scalar"):
        is_largest = _GEMMA_27B_LAYERS.get(keys.architecture) == config.num_hidden_layers
        config.query_pre_attn_scalar = split if is_largest else size


def _obey_window(keys: _Keys, config: Any) -> None:
    window = keys.take("attention.sliding_window", 0)
    pattern = keys.take("attention.sliding_window_pattern")
    if keys.architecture not in _WINDOWED:
        if window and window < getattr(config, "max_position_embeddings", window):
            raise keys.refuse("attention.sliding_window", window)
        # Mistral's configuration has a window by default, its GGUF files have none.
        if keys.architecture == "llama" and getattr(config, "sliding_window", None):
            config.sliding_window = None
        return
    if window:
        config.sliding_window = window
    if pattern is None:
        return
    if not hasattr(config, "layer_types"):
        raise keys.refuse("attention.sliding_window_pattern", pattern)
    layers = range(config.num_hidden_layers)
    if isinstance(pattern, list):
        slides = [bool(pattern[layer]) for layer in layers]
    elif isinstance(pattern, bool):
        slides = [pattern for _ in layers]
    else:
        slides = [layer % pattern < pattern - 1 for layer in layers]
    config.layer_types = ["sliding_attention" if slide else "full_attention" for slide in slides]


def _implied(key: str, config: Any) -> Any:
    """What a configuration without a field for `key` computes with."""
    if key == "feed_forward_length":
        return 4 * config.hidden_size
    if key == "attention.head_count_kv":
        return config.num_attention_heads
    if key == "expert_feed_forward_length":
        return getattr(config, "intermediate_size", None)
    return None


def _several(names: Collection[str]) -> str:
    first = sorted(names)[0]
    return f"{first} and {len(names) - 1} more" if len(names) > 1 else first


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
