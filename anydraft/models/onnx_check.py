"""One forward pass over an exported decoder, to see that the export is sound before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anydraft.models.tree_inputs import (
    ATTENTION_BIAS,
    LOGITS_POSITIONS,
    MASKED,
    POSITION_IDS,
    WINDOW_BIAS,
    WINDOW_KEY,
)

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
    places = np.arange(len(token_ids))
    window = int(session.get_modelmeta().custom_metadata_map.get(WINDOW_KEY, len(token_ids)))
    known = {
        "input_ids": np.array([token_ids]),
        "attention_mask": np.ones((1, len(token_ids))),
        POSITION_IDS: places[None],
        LOGITS_POSITIONS: places,
        ATTENTION_BIAS: np.zeros((1, 1, len(token_ids), len(token_ids))),
        WINDOW_BIAS: (MASKED * (places <= places[:, None] - window))[None, None],
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
