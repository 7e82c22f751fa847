"""An assistant on ONNX Runtime: no torch, a few milliseconds a token on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from anydraft.errors import AnydraftError, FailedPreconditionError, InvalidRequestError
from anydraft.machine import available_cores
from draft_node.engines import onnx_files
from draft_node.engines.base import Logits
from draft_node.engines.checks import check_feed, check_truncate, closed_state, prove_rollback
from draft_node.engines.onnx_cache import Cache, GrowingCache, SharedCache, Tensors
from draft_node.engines.onnx_signature import BRANCH, KEEP, Signature, read_signature

_MAX_LOGITS = 4 * 1024 * 1024
"""Exports make logits for every token they are fed, so long prompts are fed in chunks."""


class OnnxEngine:
    """See `draft_node.engines.base.AssistantEngine`."""

    def __init__(
        self,
        folder: Path,
        *,
        decoder: str | None = None,
        precision: str = "int4",
        threads: int | None = None,
    ) -> None:
        """Loads the file `decoder` in `folder`, else the one that fits `precision` best, and proves
        that it can be rolled back.

        `threads` defaults to the cores that this process may use. Raises NotFoundError when the
        folder has no model, FailedPreconditionError when onnxruntime cannot load it, and
        UnsupportedModelError when it cannot draft.
        """
        files = onnx_files.find(folder, precision, decoder)
        threads = available_cores() if threads is None else threads
        if threads < 1:
            raise InvalidRequestError(
                f"threads is {threads}. Give at least 1.", reason="INVALID_SETTINGS"
            )
        self._session = _load(files.model, threads)
        self.signature = read_signature(
            self._session.get_inputs(),
            self._session.get_outputs(),
            files.head_size,
            files.names,
        )
        self.description = f"onnxruntime {ort.__version__}, {files.model.name}, {threads} threads"
        self.context_tokens = files.context_tokens
        self.eos_ids = files.eos_ids
        self.shares_buffers = self._probe_sharing()
        self.vocab_size = self.signature.vocab_size or self._probe_vocabulary()
        prove_rollback(self)

    def open(self) -> OnnxState:
        return OnnxState(self, self._new_cache())

    def _new_cache(self) -> Cache:
        if self.shares_buffers:
            return SharedCache(self._session, self.signature, self.context_tokens)
        return GrowingCache(self._session, self.signature)

    def _probe_sharing(self) -> bool:
        """Only GroupQueryAttention takes a past that is longer than the mask, and fits its present
        into the same buffer; other graphs fail on the shapes."""
        cache = SharedCache(self._session, self.signature, self.context_tokens)
        try:
            cache.run(make_tensors(self.signature, [0], 0), 1)
        except Exception:  # whatever went wrong: the other cache makes fewer demands
            return False
        finally:
            cache.close()
        return True

    def _probe_vocabulary(self) -> int:
        cache = self._new_cache()
        try:
            return int(cache.run(make_tensors(self.signature, [0], 0), 1).shape[-1])
        finally:
            cache.close()


class OnnxState:
    """See `draft_node.engines.base.AssistantState`."""

    def __init__(self, engine: OnnxEngine, cache: Cache) -> None:
        self._engine = engine
        self._open_cache: Cache | None = cache
        self._chunk = max(1, _MAX_LOGITS // engine.vocab_size)

    @property
    def _cache(self) -> Cache:
        if self._open_cache is None:
            raise closed_state()
        return self._open_cache

    @property
    def length(self) -> int:
        return 0 if self._open_cache is None else self._open_cache.length

    def feed(self, ids: Sequence[int]) -> Logits:
        cache, before = self._cache, self.length
        check_feed(ids, before, self._engine)
        make = partial(make_tensors, self._engine.signature)
        try:
            for start in range(0, len(ids), self._chunk):
                chunk = ids[start : start + self._chunk]
                logits = cache.run(make(chunk, cache.length), len(chunk))
        except Exception as error:
            cache.length = before
            raise _failed(error) from error
        return np.array(logits[0, -1], dtype=np.float32)

    def truncate(self, length: int) -> None:
        cache = self._cache
        check_truncate(length, cache.length)
        cache.length = length

    def close(self) -> None:
        if self._open_cache is not None:
            self._open_cache.close()
            self._open_cache = None


def make_tensors(signature: Signature, ids: Sequence[int], length: int) -> Tensors:
    """All inputs but the cache, for `ids` behind `length` tokens."""
    end = length + len(ids)
    names = signature.names
    tensors: Tensors = {names.input_ids: np.array([ids], signature.id_dtype)}
    if signature.mask_dtype is not None:
        tensors[names.attention_mask] = np.ones((1, end), signature.mask_dtype)
    if signature.position_dtype is not None:
        tensors[names.position_ids] = np.arange(length, end, dtype=signature.position_dtype)[None]
    if signature.logits_to_keep_shape is not None:
        tensors[KEEP] = np.ones(signature.logits_to_keep_shape, np.int64)
    if signature.has_cache_branch:
        tensors[BRANCH] = np.array([length > 0])
    return tensors


def _failed(error: Exception) -> AnydraftError:
    if isinstance(error, AnydraftError):
        return error
    # onnxruntime has exception types of its own, without a common base.
    return FailedPreconditionError(
        f"onnxruntime {ort.__version__} failed on the assistant: {_cause(error)}. "
        "Export or download the model again, or upgrade onnxruntime.",
        reason="ASSISTANT_FAILED",
    )


def _cause(error: Exception) -> str:
    first_line, *_ = str(error).splitlines() or [type(error).__name__]
    return first_line.rpartition("Status Message: ")[2][:300]


def _load(model: Path, threads: int) -> Any:
    options = ort.SessionOptions()
    # onnxruntime counts the machine's cores by itself, not those that this process may use.
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has exception types of its own, without a base
        raise FailedPreconditionError(
            f"onnxruntime {ort.__version__} cannot load {model}: {_cause(error)}. "
            "Export or download the model again, or upgrade onnxruntime.",
            reason="ONNX_MODEL_BROKEN",
        ) from error
