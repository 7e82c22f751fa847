"""The process that runs onnxruntime-genai's model builder; `export` starts it and reads its output.

    python -m anydraft.models.build_onnx <arguments of onnxruntime_genai.models.builder>

It repairs two things first. transformers 5 keeps the rotary settings of models with sliding layers
(Gemma 3) by kind of layer, and the builder looks for them where transformers 4 had them. And the
k_quant search, most of the time of an int4 export, runs on one core.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_CHUNK_BLOCKS = 4096
"""Blocks of 32 weights searched at a time: half a megabyte, which a core's cache holds."""

BUILDER = "onnxruntime_genai.models.builder"


def flatten_rope(config: Any) -> Any:
    """Move rotary settings given by kind of layer to the names that the builder reads.

    Only where neither kind is scaled: the builder would scale both alike. Others are left as they
    are, and the builder refuses them.
    """
    kinds = getattr(config, "rope_parameters", None)
    if not isinstance(kinds, dict) or "full_attention" not in kinds:
        return config
    if any(kind.get("rope_type", "default") != "default" for kind in kinds.values()):
        return config
    config.rope_theta = kinds["full_attention"]["rope_theta"]
    if "sliding_attention" in kinds:
        config.rope_local_base_freq = kinds["sliding_attention"]["rope_theta"]
    config.rope_parameters = dict(kinds["full_attention"])
    return config


def chunked(quantize: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """`quantize(data, num_bits, group_size)` on all cores: its groups are independent, so that the
    parts of the data give the same result as the whole."""
    import numpy as np

    def in_chunks(data: Any, num_bits: int = 4, group_size: int = 32) -> tuple[Any, ...]:
        groups = np.reshape(data, (-1, group_size))
        parts = np.array_split(groups, max(1, len(groups) // _CHUNK_BLOCKS))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            done = list(pool.map(lambda part: quantize(part, num_bits, group_size), parts))
        return tuple(np.concatenate(column) for column in zip(*done, strict=True))

    return in_chunks


def _spread_k_quant() -> None:
    try:
        from onnxruntime.quantization.neural_compressor import weight_only
    except ImportError:
        return
    if hasattr(weight_only, "quant_tensor_k_quant_cpu"):
        weight_only.quant_tensor_k_quant_cpu = chunked(weight_only.quant_tensor_k_quant_cpu)


def main() -> None:
    from transformers import AutoConfig

    configs: Any = AutoConfig
    original = configs.from_pretrained

    def from_pretrained(*args: Any, **kwargs: Any) -> Any:
        return flatten_rope(original(*args, **kwargs))

    configs.from_pretrained = from_pretrained
    _spread_k_quant()
    runpy.run_module(BUILDER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
