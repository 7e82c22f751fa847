"""What an exported decoder takes and gives, found by looking at its inputs and outputs.

The names are those that onnxruntime-genai, transformers.js and optimum agree on: `input_ids`,
`attention_mask`, `position_ids`, `past_key_values.N.key|value`, `logits`, `present.N.key|value`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from anydraft.errors import UnsupportedModelError

_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")
_RECURRENT = re.compile(r"conv|ssm|recurrent|rwkv|mamba|state", re.IGNORECASE)
_DTYPES: dict[str, DTypeLike] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


@dataclass(frozen=True)
class CachePort:
    """One tensor of the cache: keys or values of one layer, shaped [1, heads, length, size]."""

    past: str
    present: str
    heads: int
    size: int
    dtype: np.dtype[Any]

    def empty(self, length: int) -> np.ndarray[Any, Any]:
        return np.zeros((1, self.heads, length, self.size), self.dtype)


@dataclass(frozen=True)
class Signature:
    ports: tuple[CachePort, ...]
    id_dtype: np.dtype[Any]
    mask_dtype: np.dtype[Any] | None
    position_dtype: np.dtype[Any] | None
    """None when the model counts positions by itself."""
    logits_to_keep_shape: tuple[int, ...] | None
    """Of the input that limits for how many positions logits are made; None without it."""
    has_cache_branch: bool
    """Legacy merged exports: one graph for the first call, another for those with a past."""
    vocab_size: int | None
    """None when the graph does not say."""


def read_signature(
    inputs: Sequence[Any], outputs: Sequence[Any], head_size: int | None
) -> Signature:
    """From `InferenceSession.get_inputs()` and `get_outputs()`.

    Raises UnsupportedModelError for anything that is not a decoder with a plain KV cache.
    """
    given = {port.name: port for port in inputs}
    made = {port.name: port for port in outputs}
    pasts = [port for port in inputs if _PAST.fullmatch(port.name)]
    _check_inputs(set(given) - {port.name for port in pasts})
    for needed, names in (("input_ids", given), ("logits", made)):
        if needed not in names:
            _refuse(f"it has no {needed}, so it is not a text decoder")
    if not pasts:
        _refuse("it has no past_key_values, so every token would cost the whole text again")
    keep = given.get("num_logits_to_keep")
    vocabulary = made["logits"].shape[-1]
    return Signature(
        ports=tuple(_cache_port(port, made, head_size) for port in pasts),
        id_dtype=_dtype(given["input_ids"]),
        mask_dtype=_optional_dtype(given.get("attention_mask"), rank=2),
        position_dtype=_optional_dtype(given.get("position_ids"), rank=2),
        logits_to_keep_shape=None if keep is None else (1,) * len(keep.shape),
        has_cache_branch="use_cache_branch" in given,
        vocab_size=vocabulary if isinstance(vocabulary, int) else None,
    )


_KNOWN = {"input_ids", "attention_mask", "position_ids", "num_logits_to_keep", "use_cache_branch"}


def _check_inputs(names: set[str]) -> None:
    unknown = sorted(names - _KNOWN)
    if not unknown:
        return
    recurrent = [name for name in unknown if _RECURRENT.search(name)]
    if recurrent:
        _refuse(f"its recurrent state ({recurrent[0]}) cannot be rolled back")
    _refuse(f"it needs {', '.join(unknown)}, which a text drafter does not have")


def _cache_port(port: Any, made: dict[str, Any], head_size: int | None) -> CachePort:
    match = _PAST.fullmatch(port.name)
    present = f"present.{match[1]}.{match[2]}" if match else ""
    if present not in made:
        _refuse(f"it takes {port.name} but gives no {present}")
    if len(port.shape) != 4:
        _refuse(f"{port.name} has {len(port.shape)} dimensions instead of 4")
    _, heads, length, size = port.shape
    if isinstance(length, int):
        _refuse(f"its cache has a fixed length of {length}, so it cannot be rolled back")
    size = size if isinstance(size, int) else head_size
    if not isinstance(heads, int) or size is None:
        _refuse("neither its shapes nor a config.json beside it say how wide its cache is")
    return CachePort(port.name, present, heads, size, _dtype(port))


def _optional_dtype(port: Any | None, rank: int) -> np.dtype[Any] | None:
    if port is None:
        return None
    if len(port.shape) != rank:
        _refuse(f"{port.name} has {len(port.shape)} dimensions instead of {rank}")
    return _dtype(port)


def _dtype(port: Any) -> np.dtype[Any]:
    if port.type not in _DTYPES:
        _refuse(f"{port.name} is a {port.type}, which numpy cannot hold")
    return np.dtype(_DTYPES[port.type])


def _refuse(problem: str) -> NoReturn:
    raise UnsupportedModelError(
        f"This ONNX model cannot draft: {problem}. Use an export for text generation with a KV "
        "cache, such as those of onnxruntime-genai, transformers.js or optimum.",
        reason="ASSISTANT_UNSUPPORTED",
    )
