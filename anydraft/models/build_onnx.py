"""The process that runs onnxruntime-genai's model builder; `export` starts it and reads its output.

    python -m anydraft.models.build_onnx <arguments of onnxruntime_genai.models.builder>

It repairs one thing first. transformers 5 keeps the rotary settings of models with sliding layers
(Gemma 3) by kind of layer, and the builder looks for them where transformers 4 had them.
"""

from __future__ import annotations

import runpy
from typing import Any

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


def main() -> None:
    from transformers import AutoConfig

    configs: Any = AutoConfig
    original = configs.from_pretrained

    def from_pretrained(*args: Any, **kwargs: Any) -> Any:
        return flatten_rope(original(*args, **kwargs))

    configs.from_pretrained = from_pretrained
    runpy.run_module(BUILDER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
