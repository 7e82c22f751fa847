"""Two ways in which exported decoders keep keys and values.

`GrowingCache`: the graph concatenates, so what it gives is longer than what it took, and is handed
back as numpy arrays (as fast as binding them, on a CPU). `SharedCache`: GroupQueryAttention writes
into a buffer in place and reads as far as the mask says. That costs nothing on long texts, where
concatenating costs more than the model, and rolling back is a number.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import onnxruntime as ort

from anydraft.errors import UnsupportedModelError
from draft_node.engines.onnx_signature import CachePort, Signature

_FIRST_CAPACITY = 256

Tensors = dict[str, np.ndarray[Any, Any]]


class Cache(Protocol):
    length: int
    """Tokens held; the owner lowers it to cut the cache, `run` raises it."""

    def run(self, tensors: Tensors, num_new: int) -> np.ndarray[Any, Any]:
        """One pass over `num_new` tokens; returns logits [1, 1 or num_new, vocab]."""

    def close(self) -> None:
        """Frees the memory, whoever still refers to this object. It is not used again."""


class GrowingCache:
    def __init__(self, session: Any, signature: Signature) -> None:
        self._session = session
        self._options = _quiet()
        self._ports = signature.ports
        self._outputs = [signature.names.logits, *(port.present for port in signature.ports)]
        self._past: Tensors = {port.past: port.empty(0) for port in signature.ports}
        self.length = 0

    def run(self, tensors: Tensors, num_new: int) -> np.ndarray[Any, Any]:
        # onnxruntime copies what is not contiguous, so a cut costs one copy, at the next pass.
        past = {name: array[:, :, : self.length] for name, array in self._past.items()}
        logits, *presents = self._session.run(self._outputs, {**tensors, **past}, self._options)
        length = self.length + num_new
        for port, present in zip(self._ports, presents, strict=True):
            if present.shape[2] != length:
                raise UnsupportedModelError(
                    f"{port.present} holds {present.shape[2]} of {length} tokens: a cache that "
                    "slides cannot be rolled back. Choose an assistant that keeps all of them.",
                    reason="ASSISTANT_CANNOT_ROLL_BACK",
                )
            self._past[port.past] = present
        self.length = length
        return np.asarray(logits)

    def close(self) -> None:
        self._past.clear()


class SharedCache:
    def __init__(self, session: Any, signature: Signature, max_tokens: int) -> None:
        self._session = session
        self._options = _quiet()
        self._ports = signature.ports
        self._logits = signature.names.logits
        self._max_tokens = max_tokens
        self._binding = session.io_binding()
        self._capacity = 0
        self._buffers: list[np.ndarray[Any, Any]] = [port.empty(0) for port in signature.ports]
        self.length = 0

    def run(self, tensors: Tensors, num_new: int) -> np.ndarray[Any, Any]:
        if self.length + num_new > self._capacity:
            self._grow(self.length + num_new)
        for name, tensor in tensors.items():
            self._binding.bind_cpu_input(name, tensor)
        # Bound anew each time: a bound output keeps the shape that it got.
        self._binding.bind_output(self._logits)
        self._session.run_with_iobinding(self._binding, self._options)
        self.length += num_new
        return np.asarray(self._binding.get_outputs()[0].numpy())

    def close(self) -> None:
        self._binding.clear_binding_inputs()
        self._binding.clear_binding_outputs()
        self._buffers.clear()

    def _grow(self, needed: int) -> None:
        capacity = max(self._capacity, _FIRST_CAPACITY)
        while capacity < needed:
            capacity *= 2
        capacity = max(needed, min(capacity, self._max_tokens))
        self._binding.bind_output(self._logits)
        # One by one: old and new together would need three times the memory for a moment.
        for index, port in enumerate(self._ports):
            self._buffers[index] = self._bind(port, self._buffers[index], capacity)
        self._capacity = capacity

    def _bind(
        self, port: CachePort, old: np.ndarray[Any, Any], capacity: int
    ) -> np.ndarray[Any, Any]:
        buffer = port.empty(capacity)
        buffer[:, :, : self.length] = old[:, :, : self.length]
        # On a CPU the value is a view of the array, which must therefore stay alive.
        value = ort.OrtValue.ortvalue_from_numpy(buffer)
        self._binding.bind_ortvalue_input(port.past, value)
        self._binding.bind_ortvalue_output(port.present, value)
        return buffer


def _quiet() -> Any:
    """onnxruntime writes failures to stderr besides raising them."""
    options = ort.RunOptions()
    options.log_severity_level = 4
    return options
