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


def onnx_logits(decoder: Path, token_ids: Sequence[int]) -> Any:
    """Logits `[len(token_ids), vocabulary]` as a float32 array, from an empty cache."""
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
            # An empty cache: every axis without a fixed size is 1 (batch) or 0 (length).
            sizes = [
                axis if isinstance(axis, int) else int(at == 0)
                for at, axis in enumerate(node.shape)
            ]
            value = np.zeros(sizes)
        feeds[node.name] = value.astype(_NUMPY_TYPES[node.type])
    logits = session.run(["logits"], feeds)[0]
    return np.asarray(logits[0], dtype=np.float32)
