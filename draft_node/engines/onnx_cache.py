"""Two ways in which exported decoders keep keys and values.

`GrowingCache`: the graph concatenates, so what it gives is longer than what it took, and is handed
back as numpy arrays (as fast as binding them, on a CPU). `SharedCache`: GroupQueryAttention writes
into a buffer in place and reads as far as the mask says. That costs nothing on long texts, where
concatenating costs more than the model, and rolling back is a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from anydraft.errors import AnydraftError, FailedPreconditionError, UnsupportedModelError
from draft_node.engines.cache import Array, Pass
from draft_node.engines.onnx_signature import CachePort, Signature
from draft_node.engines.onnx_tensors import Tensors, make_tensors

_FIRST_CAPACITY = 256


class GrowingCache:
    """See `draft_node.engines.cache.Cache`."""

    def __init__(self, session: Any, signature: Signature) -> None:
        self._session = session
        self._options = _quiet()
        self._signature = signature
        self._outputs = [signature.names.logits, *(port.present for port in signature.ports)]
        self._past: Tensors = {port.past: port.empty(0) for port in signature.ports}
        self.length = 0

    def run(self, work: Pass) -> Array:
        # onnxruntime copies what is not contiguous, so a cut costs one copy, at the next pass.
        past = {name: array[:, :, : self.length] for name, array in self._past.items()}
        tensors = make_tensors(self._signature, work, self.length)
        try:
            found = self._session.run(self._outputs, {**tensors, **past}, self._options)
        except Exception as error:
            raise failed(error) from error
        logits, *presents = found
        length = self.length + len(work.ids)
        for port, present in zip(self._signature.ports, presents, strict=True):
            if present.shape[2] != length:
                raise UnsupportedModelError(
                    f"{port.present} holds {present.shape[2]} of {length} tokens: a cache that "
                    "slides cannot be rolled back. Choose an assistant that keeps all of them.",
                    reason="ASSISTANT_CANNOT_ROLL_BACK",
                )
            self._past[port.past] = present
        self.length = length
        return wanted_logits(self._signature, work, logits)

    def close(self) -> None:
        self._past.clear()


class SharedCache:
    """See `draft_node.engines.cache.TreeCache`; takes trees where the export does."""

    def __init__(
        self, session: Any, signature: Signature, max_tokens: int, window: int | None = None
    ) -> None:
        self._session = session
        self._options = _quiet()
        self._signature = signature
        self._logits = signature.names.logits
        self._max_tokens = max_tokens
        self._window = window
        self._binding = session.io_binding()
        self._capacity = 0
        self._buffers: list[Array] = [port.empty(0) for port in signature.ports]
        self._rows: Array = np.empty((0, 0), signature.logits_dtype)
        self.length = 0

    def run(self, work: Pass) -> Array:
        end = self.length + len(work.ids)
        tensors = make_tensors(self._signature, work, self.length, self._window)
        try:
            if end > self._capacity:
                self._grow(end)
            for name, tensor in tensors.items():
                self._binding.bind_cpu_input(name, tensor)
            logits = self._bind_logits(len(work.wanted))
            self._session.run_with_iobinding(self._binding, self._options)
        except Exception as error:
            raise failed(error) from error
        self.length = end
        if logits is None:
            logits = self._binding.get_outputs()[0].numpy()
        return wanted_logits(self._signature, work, logits)

    def move(self, sources: Sequence[int], start: int) -> None:
        self.length = start + len(sources)
        moved = [at for at, source in enumerate(sources) if source != start + at]
        if not moved:
            return
        first = moved[0]
        taken = np.array(sources[first:])
        for buffer in self._buffers:
            buffer[:, :, start + first : self.length] = buffer[:, :, taken]

    def close(self) -> None:
        self._binding.clear_binding_inputs()
        self._binding.clear_binding_outputs()
        self._buffers.clear()
        self._rows = self._rows[:0].copy()

    def _bind_logits(self, rows: int) -> Array | None:
        """An array that the next pass fills, of the cache's own and valid until then; None where
        the graph decides how many rows it makes.

        Saves 0.2 ms a pass: listing the outputs of a binding wraps every one of them.
        """
        vocab_size = self._signature.vocab_size
        if not (rows and vocab_size and self._signature.takes_trees):
            # Bound anew each time: a bound output keeps the shape that it got.
            self._binding.bind_output(self._logits)
            return None
        if len(self._rows) < rows:
            self._rows = np.empty((rows, vocab_size), self._signature.logits_dtype)
        logits = self._rows[None, :rows]
        self._binding.bind_ortvalue_output(self._logits, ort.OrtValue.ortvalue_from_numpy(logits))
        return logits

    def _grow(self, needed: int) -> None:
        capacity = max(self._capacity, _FIRST_CAPACITY)
        while capacity < needed:
            capacity *= 2
        capacity = max(needed, min(capacity, self._max_tokens))
        self._binding.bind_output(self._logits)
        # One by one: old and new together would need three times the memory for a moment.
        for index, port in enumerate(self._signature.ports):
            self._buffers[index] = self._bind(port, self._buffers[index], capacity)
        self._capacity = capacity

    def _bind(self, port: CachePort, old: Array, capacity: int) -> Array:
        buffer = port.empty(capacity)
        buffer[:, :, : self.length] = old[:, :, : self.length]
        # On a CPU the value is a view of the array, which must therefore stay alive.
        value = ort.OrtValue.ortvalue_from_numpy(buffer)
        self._binding.bind_ortvalue_input(port.past, value)
        self._binding.bind_ortvalue_output(port.present, value)
        return buffer


def wanted_logits(signature: Signature, work: Pass, logits: Any) -> Array:
    """[len(work.wanted), vocabulary] of what the graph made: those alone, the last token's, or
    those of all tokens."""
    rows = np.asarray(logits)[0]
    if not signature.takes_trees:
        behind = len(work.ids) - len(rows)
        rows = rows[[at - behind for at in work.wanted]]
    return np.asarray(rows, np.float32)


def failed(error: Exception) -> AnydraftError:
    """What to raise for an exception of onnxruntime."""
    if isinstance(error, AnydraftError):
        return error
    # onnxruntime has exception types of its own, without a common base.
    return FailedPreconditionError(
        f"onnxruntime {ort.__version__} failed on the assistant: {cause(error)}. "
        "Export or download the model again, or upgrade onnxruntime.",
        reason="ASSISTANT_FAILED",
    )


def cause(error: Exception) -> str:
    first_line, *_ = str(error).splitlines() or [type(error).__name__]
    return first_line.rpartition("Status Message: ")[2][:300]


def _quiet() -> Any:
    """onnxruntime writes failures to stderr besides raising them."""
    options = ort.RunOptions()
    options.log_severity_level = 4
    return options
