"""Rotary embeddings as a GGUF file describes them, as transformers' rope_parameters.

Llama 3.1's scaling is stored as a tensor of divisors, one for each frequency, and not as the four
numbers that it is computed from (llama.cpp's convert_hf_to_gguf.py). They are found again, so that
the configuration says everything: the ONNX export reads nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from anydraft.errors import UnsupportedModelError

ROPE_TENSORS = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)
_DEFAULT_BASE = 10_000.0
_TOLERANCE = 1e-5
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


class Keys(Protocol):
    """See `gguf_config._Keys`."""

    architecture: str

    def take(self, key: str, default: Any = None) -> Any: ...

    def refuse(self, key: str, value: object) -> UnsupportedModelError: ...


def obey_rope(keys: Keys, config: Any, factors: Mapping[str, Any]) -> None:
    """Write base, width and scaling into `config.rope_parameters`.

    `factors` are tensors of ROPE_TENSORS, by name. Raises UnsupportedModelError.
    """
    import numpy as np

    by_kind = getattr(config, "rope_parameters", None)
    base = keys.take("rope.freq_base", _DEFAULT_BASE)
    sliding_base = keys.take("rope.freq_base_swa")
    long, short = (factors.get(f"rope_factors_{kind}.weight") for kind in ("long", "short"))
    if (long is None) != (short is None):
        raise keys.refuse("rope.scaling.type", "one of rope_factors_long and rope_factors_short")
    scaling = _scaling(keys, config) if long is None else _longrope(keys, config, long, short)
    width = keys.take("rope.dimension_count")
    if not by_kind:
        if scaling or factors:
            raise keys.refuse("rope.scaling.type", scaling or sorted(factors))
        return
    by_layer = "full_attention" in by_kind
    # Keys of the scaling that transformers has as this model's own, as gpt-oss its `truncate`.
    old = by_kind["full_attention"] if by_layer else by_kind
    kept = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
    if scaling.get("rope_type") == old.get("rope_type"):
        kept = tuple(old)
    rope = {key: old[key] for key in kept if key in old}
    rope |= {"rope_type": "default", "rope_theta": base} | scaling
    _obey_width(keys, config, rope, width)
    if (divisors := factors.get("rope_freqs.weight")) is not None:
        rope |= _llama3(config, rope, np.asarray(divisors, dtype=np.float64))
    if not by_layer:
        if sliding_base not in (None, base):
            raise keys.refuse("rope.freq_base_swa", sliding_base)
        config.rope_parameters = rope
        return
    sliding = dict(by_kind["sliding_attention"])
    if sliding_base is not None:
        sliding["rope_theta"] = sliding_base
    config.rope_parameters = {"full_attention": rope, "sliding_attention": sliding}


def _longrope(keys: Keys, config: Any, long: Any, short: Any) -> dict[str, Any]:
    """Phi's: divisors for texts beyond the original context, and others for those within."""
    length = config.max_position_embeddings
    original = keys.take("rope.scaling.original_context_length", length)
    for key in ("rope.scaling.type", "rope.scaling.factor"):
        if (value := keys.take(key)) not in (None, 0, 1, "longrope", "none"):
            raise keys.refuse(key, value)
    # Phi-3's configuration says it twice, and each is read somewhere.
    config.original_max_position_embeddings = original
    return {
        "rope_type": "longrope",
        "long_factor": [float(factor) for factor in long],
        "short_factor": [float(factor) for factor in short],
        "original_max_position_embeddings": original,
        "attention_factor": keys.take("rope.scaling.attn_factor", 1.0) or 1.0,
    }


def _scaling(keys: Keys, config: Any) -> dict[str, Any]:
    """`rope.scaling.*`; empty where there is none."""
    kind = keys.take("rope.scaling.type", "linear")
    factor = keys.take("rope.scaling.factor", keys.take("rope.scale_linear", 0)) or 1.0
    if keys.take("rope.scaling.attn_factor", 1.0) not in (0, 1.0):
        raise keys.refuse("rope.scaling.attn_factor", "other than 1")
    if kind == "none" or (kind == "linear" and factor == 1):
        return {}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise keys.refuse("rope.scaling.type", kind)
    original = keys.take("rope.scaling.original_context_length", config.max_position_embeddings)
    scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    for end in ("beta_fast", "beta_slow"):
        if (beta := keys.take(f"rope.scaling.yarn_{end}")) is not None:
            scaling[end] = beta
    return scaling


def _obey_width(keys: Keys, config: Any, rope: dict[str, Any], width: int | None) -> None:
    size = _head_size(config)
    share = rope.get("partial_rotary_factor", 1.0)
    if width is None or width == int(size * share):
        return
    if "partial_rotary_factor" not in rope:
        raise keys.refuse("rope.dimension_count", width)
    rope["partial_rotary_factor"] = width / size


def _llama3(config: Any, rope: dict[str, Any], factors: Any) -> dict[str, Any]:
    """The parameters of the `llama3` scaling whose divisors are `factors`; empty where all are 1.

    Raises UnsupportedModelError unless they come out within 1e-5.
    """
    import numpy as np

    if np.all(factors == 1):
        return {}
    width = int(_head_size(config) * rope.get("partial_rotary_factor", 1.0))
    # [width / 2], radians a position.
    frequencies = rope["rope_theta"] ** (-np.arange(0, width, 2) / width)
    if rope["rope_type"] == "default" and len(factors) == len(frequencies):
        for scaling in _candidates(frequencies, factors):
            divisors = frequencies / _scaled(frequencies, scaling)
            if np.allclose(divisors, factors, rtol=_TOLERANCE, atol=0):
                return {"rope_type": "llama3"} | scaling
    raise UnsupportedModelError(
        "The GGUF file scales its rotary frequencies by the tensor rope_freqs.weight, in a way "
        "that no configuration of transformers describes. Name the model's repository with "
        "safetensors.",
        reason="GGUF_NOT_OBEYED",
    )


def _candidates(frequencies: Any, factors: Any) -> list[dict[str, Any]]:
    """Parameters that may have made `factors`, from what Llama's own are to what fits best.

    Between the two wavelengths, 1 / factor is linear in the frequency: two points decide its slope
    and height. Only the ratios of length, low and high count, so low is taken as 1.
    """
    import numpy as np

    factor = float(factors.max())
    candidates = [{"factor": factor, **_LLAMA3}]
    between = (factors > 1 + _TOLERANCE) & (factors < factor * (1 - _TOLERANCE))
    smooth = (1 / factors[between] - 1 / factor) / (1 - 1 / factor)
    turns = frequencies[between] / (2 * math.pi)
    if len(turns) == 1:
        high = _LLAMA3["high_freq_factor"]
        length = round((smooth[0] * (high - 1) + 1) / turns[0])
        candidates.append(
            {"factor": factor, **_LLAMA3, "original_max_position_embeddings": int(length)}
        )
    elif len(turns) > 1:
        slope, offset = np.polyfit(turns, smooth, 1)
        if offset < 0:
            high, length = 1 - 1 / offset, round(-slope / offset)
            for exact in (round(high), float(high)):
                found = {"low_freq_factor": 1.0, "high_freq_factor": float(exact)}
                found["original_max_position_embeddings"] = int(length)
                candidates.append({"factor": factor, **found})
    rounded = float(round(factor))
    return [candidate | {"factor": rounded} for candidate in candidates] + candidates


def _scaled(frequencies: Any, scaling: dict[str, Any]) -> Any:
    """transformers' `_compute_llama3_parameters`, in double precision."""
    import numpy as np

    factor, low, high = (scaling[key] for key in ("factor", "low_freq_factor", "high_freq_factor"))
    if high <= low:
        return frequencies
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * ((1 - smooth) / factor + smooth)


def _head_size(config: Any) -> int:
    size = getattr(config, "head_dim", None)
    return int(size or config.hidden_size // config.num_attention_heads)
