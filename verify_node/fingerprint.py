"""What must be equal on two nodes, so that one goes on with an answer as the other would have."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from transformers import PreTrainedModel

_SAMPLES = 64
"""Numbers of each tensor that are looked at, spread over it: weights that were trained, merged or
quantised otherwise differ nearly everywhere, and reading all of them would take a minute."""


def fingerprint(model: PreTrainedModel, engine: str) -> str:
    """Of weights, their precision, the device and the engine: bf16 kernels round differently, so
    the same weights on another kind of device may answer otherwise."""
    digest = hashlib.blake2b(digest_size=16)
    config = {k: v for k, v in model.config.to_dict().items() if not k.startswith("_")}
    for name in ("transformers_version", "torch_dtype", "dtype"):
        config.pop(name, None)
    facts: list[Any] = [config, engine, str(model.dtype), model.device.type]
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(_samples(tensor))
    return digest.hexdigest()


def _samples(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().reshape(-1)
    step = max(flat.numel() // _SAMPLES, 1)
    return flat[::step][:_SAMPLES].cpu().contiguous().view(torch.uint8).numpy().tobytes()
