"""One forward pass over an exported decoder, to see that the export is sound before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

_NUMPY_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
}


def onnx_logits(decoder: Path, token_ids: Sequence[int], head_size: int) -> Any:
    """Logits `[len(token_ids), vocabulary]` as a float32 array, from an empty cache.

    `head_size` is needed because the builder leaves the last axis of its caches without a size.
    """
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(decoder), options, providers=["CPUExecutionProvider"]
    )
    known = {
        "input_ids": np.array([token_ids]),
        "attention_mask": np.ones((1, len(token_ids))),
        "position_ids": np.arange(len(token_ids))[None],
    }
    feeds = {}
    for node in session.get_inputs():
        value = known.get(node.name)
        if value is None:
            # An empty cache: [batch, heads, length, head size].
            value = np.zeros((1, node.shape[1], 0, head_size))
        feeds[node.name] = value.astype(_NUMPY_TYPES[node.type])
    logits = session.run(["logits"], feeds)[0]
    return np.asarray(logits[0], dtype=np.float32)
