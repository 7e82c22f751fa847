"""Whatever a GGUF file says is obeyed, or the file is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from anydraft.errors import UnsupportedModelError
from anydraft.models import load_dense, resolve_model
from anydraft.models.gguf_config import check_tensors, obey_metadata
from tests.models import gguf_zoo, tiny

LLAMA31 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
FEW_TOKENS = {**LLAMA31, "original_max_position_embeddings": 512}


def factors_of(rope: dict[str, Any], width: int = 16) -> Any:
    """As llama.cpp's converter computes them from the parameters."""
    factors = []
    for frequency in rope["rope_theta"] ** (-np.arange(0, width, 2) / width):
        turns = rope["original_max_position_embeddings"] * frequency / (2 * np.pi)
        low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(factor)
        else:
            smooth = (turns - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, dtype=np.float32)


def loaded(path: Path) -> tuple[Any, Any]:
    return load_dense(resolve_model(str(path)), "float32")


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=torch.arange(3, 103)[None]).logits
    return found


@pytest.mark.parametrize(
    "rope",
    [
        FEW_TOKENS,
        {**LLAMA31, "original_max_position_embeddings": 8192},
        {**FEW_TOKENS, "factor": 32.0},
        {**FEW_TOKENS, "high_freq_factor": 24.0},
    ],
)
def test_rotary_factors_become_the_scaling_they_were_made_of(
    rope: dict[str, Any], tmp_path: Path
) -> None:
    settings = {"rope_parameters": rope}
    path = tiny.save_gguf(
        tmp_path / "tiny.gguf", settings=settings, tensors={"rope_freqs.weight": factors_of(rope)}
    )
    model, _ = loaded(path)
    assert model.config.rope_parameters["rope_type"] == "llama3"
    torch.testing.assert_close(logits(model), logits(tiny.llama(**settings)), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("architecture", gguf_zoo.CASES)
def test_other_architectures_are_the_same_models(architecture: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    original = gguf_zoo.save(architecture, path)
    torch.testing.assert_close(logits(loaded(path)[0]), logits(original), rtol=1e-3, atol=1e-3)


def test_the_scaling_matters(tmp_path: Path) -> None:
    """Otherwise the test above would pass without it."""
    scaled = logits(tiny.llama(rope_parameters=FEW_TOKENS))
    assert (scaled - logits(tiny.llama()))[0, 20:].abs().max() > 1e-3


def test_rotary_factors_that_no_scaling_describes(tmp_path: Path) -> None:
    factors = np.linspace(1, 3, 8, dtype=np.float32) ** 2
    path = tiny.save_gguf(tmp_path / "tiny.gguf", tensors={"rope_freqs.weight": factors})
    with pytest.raises(UnsupportedModelError, match=r"rope_freqs\.weight.*safetensors"):
        loaded(path)


def test_half_of_the_factors_for_long_texts(tmp_path: Path) -> None:
    half = {"rope_factors_long.weight": np.ones(8, dtype=np.float32)}
    with pytest.raises(UnsupportedModelError, match="rope_factors_short"):
        loaded(tiny.save_gguf(tmp_path / "tiny.gguf", tensors=half))


def test_factors_of_one_change_nothing(tmp_path: Path) -> None:
    ones = np.ones(8, dtype=np.float32)
    model, _ = loaded(tiny.save_gguf(tmp_path / "t.gguf", tensors={"rope_freqs.weight": ones}))
    torch.testing.assert_close(logits(model), logits(tiny.llama()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("say", "settings"),
    [
        (lambda w: w.add_rope_freq_base(500.0), {"rope_theta": 500.0}),
        (
            lambda w: (w.add_string("llama.rope.scaling.type", "linear"), factor(w, 4.0)),
            {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
        ),
        (lambda w: factor(w, 2.0), {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0}),
        (
            lambda w: (
                w.add_string("llama.rope.scaling.type", "yarn"),
                factor(w, 4.0),
                w.add_uint32("llama.rope.scaling.original_context_length", 32),
            ),
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32,
                "rope_theta": 10_000.0,
            },
        ),
    ],
    ids=["base", "linear", "linear unsaid", "yarn"],
)
def test_rotary_keys(say: Callable[[Any], Any], settings: dict[str, Any], tmp_path: Path) -> None:
    model, _ = loaded(tiny.save_gguf(tmp_path / "tiny.gguf", say=say))
    expected = logits(tiny.llama(rope_parameters={"rope_type": "default"} | settings))
    assert (expected - logits(tiny.llama()))[0, 20:].abs().max() > 1e-3
    torch.testing.assert_close(logits(model), expected, rtol=1e-3, atol=1e-5)


def factor(writer: Any, value: float) -> None:
    writer.add_float32("llama.rope.scaling.factor", value)


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("llama.attention.sliding_window", "uint32", 16),
        ("llama.attention.scale", "float32", 0.3),
        ("llama.attention.clamp_kqv", "float32", 8.0),
        ("llama.attention.causal", "bool", False),
        ("llama.attn_logit_softcapping", "float32", 50.0),
        ("llama.logit_scale", "float32", 0.5),
        ("llama.residual_scale", "float32", 0.2),
        ("llama.embedding_scale", "float32", 12.0),
        ("llama.expert_count", "uint32", 8),
        ("llama.rope.scaling.type", "string", "longrope"),
        ("llama.rope.scaling.attn_factor", "float32", 1.2),
        ("llama.attention.value_length", "uint32", 32),
        ("llama.of_the_future", "uint32", 1),
        ("tokenizer.ggml.of_the_future", "bool", True),
        ("general.type", "string", "adapter"),
        ("split.count", "uint16", 2),
    ],
)
def test_keys_that_cannot_be_obeyed_are_named(
    key: str, kind: str, value: Any, tmp_path: Path
) -> None:
    path = tiny.save_gguf(
        tmp_path / "tiny.gguf", say=lambda w: getattr(w, f"add_{kind}")(key, value)
    )
    with pytest.raises(UnsupportedModelError, match=f"{key}|type 'adapter'") as caught:
        loaded(path)
    assert caught.value.reason == "GGUF_NOT_OBEYED"
    assert "safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("llama.attention.scale", "float32", 0.25),
        ("llama.logit_scale", "float32", 1.0),
        ("llama.attention.causal", "bool", True),
        ("llama.attention.key_length", "uint32", 16),
        ("llama.tensor_data_layout", "string", "Meta AI original pth"),
        ("llama.rope.scaling.finetuned", "bool", True),
        ("somebody.quantized_by", "string", "me"),
    ],
)
def test_keys_that_change_nothing(key: str, kind: str, value: Any, tmp_path: Path) -> None:
    path = tiny.save_gguf(
        tmp_path / "tiny.gguf", say=lambda w: getattr(w, f"add_{kind}")(key, value)
    )
    torch.testing.assert_close(logits(loaded(path)[0]), logits(tiny.llama()), rtol=1e-4, atol=1e-5)


def test_a_tensor_that_has_no_place_is_named(tmp_path: Path) -> None:
    bias = {"blk.0.attn_q.bias": np.ones(64, dtype=np.float32)}
    path = tiny.save_gguf(tmp_path / "tiny.gguf", tensors=bias)
    with pytest.raises(UnsupportedModelError, match=r"the tensor blk\.0\.attn_q\.bias"):
        loaded(path)


def test_a_tensor_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tiny.save_gguf(tmp_path / "tiny.gguf", leave_out="blk.1.ffn_up.weight")
    with pytest.raises(UnsupportedModelError, match=r"layers\.1\.mlp\.up_proj"):
        loaded(path)


def test_tensors_of_experts_are_one_parameter() -> None:
    mapped = {"blk.0.ffn_up_exps", "output.weight"}
    names = ["blk.0.ffn_up_exps.weight", "rope_freqs.weight", "output.weight"]
    check_tensors(names, mapped, [], "m")
    with pytest.raises(UnsupportedModelError, match=r"ffn_gate_exps"):
        check_tensors([*names, "blk.0.ffn_gate_exps.weight"], mapped, [], "m")


def obeyed(config: Any, architecture: str, **facts: Any) -> Any:
    keys = {f"{architecture}.{key}": value for key, value in facts.items()}
    obey_metadata(config, {"general.architecture": architecture} | keys, {}, "m.gguf")
    return config


def test_gemma2_is_read_whole() -> None:
    from transformers import Gemma2Config

    facts = {
        "block_count": 26,
        "embedding_length": 2304,
        "attention.head_count": 8,
        "attention.key_length": 256,
        "attn_logit_softcapping": 40.0,
        "final_logit_softcapping": 20.0,
        "attention.sliding_window": 1024,
    }
    config = obeyed(Gemma2Config(), "gemma2", **facts)
    assert (config.attn_logit_softcapping, config.final_logit_softcapping) == (40.0, 20.0)
    assert (config.sliding_window, config.query_pre_attn_scalar) == (1024, 256)
    largest = facts | {
        "block_count": 46,
        "embedding_length": 4608,
        "attention.head_count": 32,
        "attention.key_length": 128,
    }
    config = obeyed(Gemma2Config(num_hidden_layers=46), "gemma2", **largest)
    assert (config.head_dim, config.query_pre_attn_scalar) == (128, 144)


def test_gemma3_scales_its_full_layers_only() -> None:
    from transformers import Gemma3TextConfig

    config = obeyed(
        Gemma3TextConfig(num_hidden_layers=6),
        "gemma3",
        **{
            "attention.key_length": 256,
            "rope.freq_base": 1e6,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            "attention.sliding_window_pattern": [True, False] * 3,
        },
    )
    full, sliding = (
        config.rope_parameters[kind] for kind in ("full_attention", "sliding_attention")
    )
    assert full == {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    assert sliding == {"rope_type": "default", "rope_theta": 10_000.0}
    assert config.layer_types == ["sliding_attention", "full_attention"] * 3


def test_partial_rotation_experts_and_windows() -> None:
    from transformers import Phi3Config, Qwen3MoeConfig, StableLmConfig

    phi = obeyed(
        Phi3Config(), "phi3", **{"rope.dimension_count": 72, "attention.sliding_window": 2047}
    )
    assert phi.rope_parameters["partial_rotary_factor"] == 0.75
    assert phi.sliding_window == 2047
    stable = obeyed(
        StableLmConfig(),
        "stablelm",
        **{
            "rope.dimension_count": 40,
            "rope.freq_base": 5e5,
            "use_parallel_residual": stable_default(),
        },
    )
    assert stable.rope_parameters["rope_theta"] == 5e5
    assert stable.rope_parameters["partial_rotary_factor"] == 0.5
    moe = obeyed(
        Qwen3MoeConfig(),
        "qwen3moe",
        expert_feed_forward_length=96,
        expert_weights_norm=False,
        expert_gating_func=1,
        **{"attention.key_length": 128},
    )
    assert (moe.moe_intermediate_size, moe.norm_topk_prob, moe.head_dim) == (96, False, 128)
    with pytest.raises(UnsupportedModelError, match="expert_gating_func"):
        obeyed(Qwen3MoeConfig(), "qwen3moe", expert_gating_func=2, **{"attention.key_length": 128})


def stable_default() -> bool:
    from transformers import StableLmConfig

    return bool(StableLmConfig().use_parallel_residual)


def test_heads_that_differ_between_layers_are_refused() -> None:
    from transformers import LlamaConfig

    with pytest.raises(UnsupportedModelError, match="head_count_kv"):
        obeyed(LlamaConfig(), "llama", **{"attention.head_count_kv": [8, 4]})
    assert (
        obeyed(LlamaConfig(), "llama", **{"attention.head_count_kv": [8, 8]}).num_key_value_heads
        == 8
    )


def test_a_default_window_that_the_file_does_not_have() -> None:
    from transformers import MistralConfig

    assert MistralConfig().sliding_window == 4096
    assert obeyed(MistralConfig(), "llama").sliding_window is None


def test_recommended_sampling_is_a_default(tmp_path: Path) -> None:
    path = tiny.save_gguf(
        tmp_path / "tiny.gguf",
        say=lambda w: (
            w.add_float32("general.sampling.temp", 0.5),
            w.add_int32("general.sampling.top_k", 20),
        ),
    )
    generation = loaded(path)[0].generation_config
    assert (generation.do_sample, generation.temperature, generation.top_k) == (True, 0.5, 20)
