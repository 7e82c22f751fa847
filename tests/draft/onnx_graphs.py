"""A decoder of one attention layer as the Hub's exports write it, with its habits as options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper, parser

VOCABULARY, WIDTH, HEADS, SIZE, POSITIONS = 40, 16, 2, 8, 64
_EVERYTHING = 10**6

_BODY = Template("""
<ir_version: 8, opset_import: ["" : 17]>
decoder ($inputs) => ($float[batch, kept, $vocabulary] logits,
    $float[batch, $heads, total, $size] present_0_key,
    $float[batch, $heads, total, $size] present_0_value)
{
  zero = Constant<value = int64[1] {0}>()
  one = Constant<value = int64[1] {1}>()
  two = Constant<value = int64[1] {2}>()
  far = Constant<value = int64[1] {1000000}>()
  kept_from = Constant<value = int64[1] {-$window}>()
  split = Constant<value = int64[4] {0, 0, $heads, $size}>()
  flat = Constant<value = int64[3] {0, 0, $width}>()
  scale = Constant<value = float {0.35}>()
  never = Constant<value = float {-1000000.0}>()
  word = Gather(words, input_ids)
  place = Gather(places, position_ids)
  x = Add(word, place)
  q0 = MatMul(x, wq)
  q1 = Reshape(q0, split)
  q = Transpose<perm = [0, 2, 1, 3]>(q1)
  k0 = MatMul(x, wk)
  k1 = Reshape(k0, split)
  k2 = Transpose<perm = [0, 2, 1, 3]>(k1)
  k3 = Cast<to = $dtype>(k2)
  keys = Concat<axis = 2>(past_key_values_0_key, k3)
  v0 = MatMul(x, wv)
  v1 = Reshape(v0, split)
  v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
  v3 = Cast<to = $dtype>(v2)
  values = Concat<axis = 2>(past_key_values_0_value, v3)
  present_0_key = Slice(keys, kept_from, far, two)
  present_0_value = Slice(values, kept_from, far, two)
  k = Cast<to = 1>(keys)
  v = Cast<to = 1>(values)
  kt = Transpose<perm = [0, 1, 3, 2]>(k)
  s0 = MatMul(q, kt)
  s1 = Mul(s0, scale)
  shape = Shape(keys)
  length = Gather(shape, two)
  total = Squeeze(length, zero)
  first = Squeeze(zero, zero)
  step = Squeeze(one, zero)
  columns = Range(first, total, step)
  rows = Unsqueeze(position_ids, two)
  seen0 = LessOrEqual(columns, rows)
  seen = Unsqueeze(seen0, one)
  s2 = Where(seen, s1, never)
  p = Softmax<axis = -1>(s2)
  y0 = MatMul(p, v)
  y1 = Transpose<perm = [0, 2, 1, 3]>(y0)
  y2 = Reshape(y1, flat)
  y3 = MatMul(y2, wo)
  mixed = Add(y3, x)
  $tail
  scores = MatMul(last, head)
  logits = Cast<to = $dtype>(scores)
}
""")
_KEEP_LAST = """keep = Unsqueeze(num_logits_to_keep, zero)
  behind = Neg(keep)
  last = Slice(mixed, behind, far, one)"""
_KEEP_ALL = "last = Identity(mixed)"


@dataclass(frozen=True)
class Graph:
    window: int | None = None
    """Presents keep this many tokens only."""
    half: bool = False
    """Cache and logits in half precision."""
    keep_logits: bool = False
    cache_branch: bool = False
    extra_input: str = ""
    past_length: str = "past"
    names: Mapping[str, str] = field(default_factory=dict)
    """Other names than usual, by the usual ones."""

    def save(self, file: Path) -> None:
        model = parser.parse_model(self._text())
        model.graph.initializer.extend(_weights())
        _rename(model, self.names)
        file.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, file)

    def _text(self) -> str:
        number = "float16" if self.half else "float"
        cache = f"{number}[batch, {HEADS}, {self.past_length}, {SIZE}]"
        inputs = [
            "int64[batch, new] input_ids",
            "int64[batch, total] attention_mask",
            "int64[batch, new] position_ids",
            f"{cache} past_key_values_0_key",
            f"{cache} past_key_values_0_value",
        ]
        inputs += ["int64 num_logits_to_keep"] * self.keep_logits
        inputs += ["bool[1] use_cache_branch"] * self.cache_branch
        inputs += [f"float[batch, 4] {self.extra_input}"] if self.extra_input else []
        return _BODY.substitute(
            inputs=", ".join(inputs),
            float=number,
            dtype=onnx.TensorProto.FLOAT16 if self.half else onnx.TensorProto.FLOAT,
            window=self.window or _EVERYTHING,
            tail=_KEEP_LAST if self.keep_logits else _KEEP_ALL,
            vocabulary=VOCABULARY,
            heads=HEADS,
            size=SIZE,
            width=WIDTH,
        )


def _weights() -> list[onnx.TensorProto]:
    rng = np.random.default_rng(0)
    shapes = {
        "words": (VOCABULARY, WIDTH),
        "places": (POSITIONS, WIDTH),
        **dict.fromkeys(("wq", "wk", "wv", "wo"), (WIDTH, WIDTH)),
        "head": (WIDTH, VOCABULARY),
    }
    return [
        numpy_helper.from_array(rng.normal(scale=0.4, size=shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]


def graph_reference() -> Callable[[tuple[int, ...]], np.ndarray[Any, Any]]:
    """What every `Graph` computes, in numpy: ids to the log-probabilities of what follows."""
    weights = {tensor.name: numpy_helper.to_array(tensor).astype(float) for tensor in _weights()}

    def after(ids: tuple[int, ...]) -> np.ndarray[Any, Any]:
        x = weights["words"][list(ids)] + weights["places"][: len(ids)]
        q, k, v = (
            (x @ weights[name]).reshape(-1, HEADS, SIZE).swapaxes(0, 1)
            for name in ("wq", "wk", "wv")
        )
        scores = np.where(np.tri(len(ids)), q @ k.swapaxes(1, 2) * 0.35, -np.inf)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = (shares @ v).swapaxes(0, 1).reshape(-1, WIDTH) @ weights["wo"] + x
        logits = mixed[-1] @ weights["head"]
        logits -= logits.max()
        return np.asarray(logits - np.log(np.exp(logits).sum()))

    return after


def _rename(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Gives the ports the dotted names that the text form cannot spell, and then `names`."""
    dotted = {
        f"{side}_0_{part}": f"{side}.0.{part}"
        for side in ("past_key_values", "present")
        for part in ("key", "value")
    }
    dotted = dict(names) | {name: names.get(full, full) for name, full in dotted.items()}
    for port in (*model.graph.input, *model.graph.output):
        port.name = dotted.get(port.name, port.name)
    for node in model.graph.node:
        node.input[:] = [dotted.get(name, name) for name in node.input]
        node.output[:] = [dotted.get(name, name) for name in node.output]
