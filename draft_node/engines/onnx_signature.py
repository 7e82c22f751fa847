"""What an exported decoder takes and gives, found by looking at its inputs and outputs.

The names are those that onnxruntime-genai, transformers.js and optimum agree on, see `TensorNames`,
unless a genai_config.json beside the file gives others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import DTypeLike

from anydraft.errors import UnsupportedModelError
from anydraft.models.tree_inputs import ATTENTION_BIAS, LOGITS_POSITIONS, WINDOW_BIAS

KEEP = "num_logits_to_keep"
BRANCH = "use_cache_branch"
_RECURRENT = re.compile(r"conv|ssm|recurrent|rwkv|mamba|state", re.IGNORECASE)
_DTYPES: dict[str, DTypeLike] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


@dataclass(frozen=True)
class TensorNames:
    """What the tensors of a decoder are called, with the keys of genai_config.json.

    Those of the cache have `%d` where the number of the layer stands.
    """

    KEYS: ClassVar[tuple[str, ...]] = (
        "input_ids",
        "attention_mask",
        "position_ids",
        "past_key_names",
        "past_value_names",
        "logits",
        "present_key_names",
        "present_value_names",
    )

    input_ids: str = "input_ids"
    attention_mask: str = "attention_mask"
    position_ids: str = "position_ids"
    past_key_names: str = "past_key_values.%d.key"
    past_value_names: str = "past_key_values.%d.value"
    logits: str = "logits"
    present_key_names: str = "present.%d.key"
    present_value_names: str = "present.%d.value"

    def present_of(self, past: str) -> str | None:
        """The output that becomes the input `past`; None if that is not part of the cache."""
        pairs = (
            (self.past_key_names, self.present_key_names),
            (self.past_value_names, self.present_value_names),
        )
        for before, after in pairs:
            pattern = re.escape(before).replace("%d", r"(\d+)")
            if match := re.fullmatch(pattern, past):
                return after.replace("%d", match[1])
        return None


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
    names: TensorNames
    ports: tuple[CachePort, ...]
    id_dtype: np.dtype[Any]
    mask_dtype: np.dtype[Any] | None
    position_dtype: np.dtype[Any] | None
    """None when the model counts positions by itself."""
    logits_to_keep_shape: tuple[int, ...] | None
    """Of the input that limits for how many positions logits are made; None without it."""
    has_cache_branch: bool
    """Legacy merged exports: one graph for the first call, another for those with a past."""
    logits_dtype: np.dtype[Any]
    vocab_size: int | None
    """None when the graph does not say."""
    takes_trees: bool
    """Has the inputs of `anydraft.models.tree_inputs`, those for sliding layers perhaps."""
    has_window_bias: bool


def read_signature(
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    head_size: int | None,
    names: TensorNames | None = None,
) -> Signature:
    """From `InferenceSession.get_inputs()` and `get_outputs()`.

    Raises UnsupportedModelError for anything that is not a decoder with a plain KV cache.
    """
    names = names or TensorNames()
    given = {port.name: port for port in inputs}
    made = {port.name: port for port in outputs}
    pasts = [port for port in inputs if names.present_of(port.name)]
    known = {names.input_ids, names.attention_mask, names.position_ids, KEEP, BRANCH}
    takes_trees = {ATTENTION_BIAS, LOGITS_POSITIONS, names.position_ids} <= set(given)
    if takes_trees:
        known |= {ATTENTION_BIAS, LOGITS_POSITIONS, WINDOW_BIAS}
    _check_inputs(set(given) - {port.name for port in pasts} - known)
    for needed, ports in ((names.input_ids, given), (names.logits, made)):
        if needed not in ports:
            _refuse(f"it has no {needed}, so it is not a text decoder")
    if not pasts:
        past = names.past_key_names.replace("%d", "0")
        _refuse(f"it has no {past}, so every token would cost the whole text again")
    keep = given.get(KEEP)
    vocabulary = made[names.logits].shape[-1]
    return Signature(
        names=names,
        ports=tuple(_cache_port(port, made, head_size, names) for port in pasts),
        id_dtype=_dtype(given[names.input_ids]),
        mask_dtype=_optional_dtype(given.get(names.attention_mask), rank=2),
        position_dtype=_optional_dtype(given.get(names.position_ids), rank=2),
        logits_to_keep_shape=None if keep is None else (1,) * len(keep.shape),
        has_cache_branch=BRANCH in given,
        logits_dtype=_dtype(made[names.logits]),
        vocab_size=vocabulary if isinstance(vocabulary, int) else None,
        takes_trees=takes_trees,
        has_window_bias=WINDOW_BIAS in given,
    )


def _check_inputs(unknown: set[str]) -> None:
    """Refuse inputs that nobody here can fill."""
    if not unknown:
        return
    recurrent = [name for name in sorted(unknown) if _RECURRENT.search(name)]
    if recurrent:
        _refuse(f"its recurrent state ({recurrent[0]}) cannot be rolled back")
    _refuse(f"it needs {', '.join(sorted(unknown))}, which a text drafter does not have")


def _cache_port(
    port: Any, made: dict[str, Any], head_size: int | None, names: TensorNames
) -> CachePort:
    present = names.present_of(port.name)
    if present is None or present not in made:
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
