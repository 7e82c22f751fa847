"""An assistant on ONNX Runtime: no torch, a few milliseconds a token on a CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime as ort

from anydraft.errors import FailedPreconditionError, InvalidRequestError
from anydraft.machine import available_cores
from anydraft.models.tree_inputs import WINDOW_KEY
from draft_node.engines import onnx_files
from draft_node.engines.base import AssistantState
from draft_node.engines.cache import Cache, Pass
from draft_node.engines.checks import prove_rollback, trees_hold
from draft_node.engines.measuring import best_width, chunk_tokens, pass_costs
from draft_node.engines.onnx_cache import GrowingCache, SharedCache, cause
from draft_node.engines.onnx_signature import read_signature
from draft_node.engines.states import ChainState, TreeState

_MAX_LOGITS = 4 * 1024 * 1024
"""Exports that are not of ours make logits for every token they are fed, 4 bytes each."""


class OnnxEngine:
    """See `draft_node.engines.base.AssistantEngine`."""

    def __init__(
        self,
        folder: Path,
        *,
        decoder: str | None = None,
        precision: str = "int4",
        threads: int | None = None,
        id_limit: int | None = None,
    ) -> None:
        """Loads the file `decoder` in `folder`, else the one that fits `precision` best, and proves
        that it can be rolled back.

        `threads` defaults to the cores that this process may use. Ids from `id_limit` on are never
        proposed: the tokenizer does not know them. Raises NotFoundError when the folder has no
        model, FailedPreconditionError when onnxruntime cannot load it, and UnsupportedModelError
        when it cannot draft.
        """
        files = onnx_files.find(folder, precision, decoder)
        threads = available_cores() if threads is None else threads
        if threads < 1:
            raise InvalidRequestError(
                f"threads is {threads}. Give at least 1.", reason="INVALID_SETTINGS"
            )
        self._session = _load(files.model, threads)
        self._window = _window(self._session)
        self.id_limit = id_limit
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
        prove_rollback(self._new_cache, self.vocab_size)
        self.takes_trees = (
            self.shares_buffers
            and self.signature.takes_trees
            and trees_hold(self._new_cache, self._new_shared_cache, self.vocab_size)
        )
        most = min(self.context_tokens, max(1, _MAX_LOGITS // self.vocab_size))
        self.chunk_tokens = chunk_tokens(self._new_cache, self.vocab_size, most=most)
        self.max_paths = 1
        if self.takes_trees:
            costs = pass_costs(self._new_shared_cache, self.vocab_size, most=self.context_tokens)
            self.max_paths = best_width(costs)

    def open(self) -> AssistantState:
        if self.takes_trees:
            return TreeState(self, self._new_shared_cache())
        return ChainState(self, self._new_cache())

    def _new_cache(self) -> Cache:
        if self.shares_buffers:
            return self._new_shared_cache()
        return GrowingCache(self._session, self.signature)

    def _new_shared_cache(self) -> SharedCache:
        return SharedCache(self._session, self.signature, self.context_tokens, self._window)

    def _probe_sharing(self) -> bool:
        """Only GroupQueryAttention takes a past that is longer than the mask, and fits its present
        into the same buffer; other graphs fail on the shapes."""
        cache = self._new_shared_cache()
        try:
            cache.run(Pass([0], [0]))
        except Exception:  # whatever went wrong: the other cache makes fewer demands
            return False
        finally:
            cache.close()
        return True

    def _probe_vocabulary(self) -> int:
        cache = self._new_cache()
        try:
            return int(cache.run(Pass([0], [0])).shape[-1])
        finally:
            cache.close()


def _window(session: Any) -> int | None:
    """How far the layers see whose window comes as a bias."""
    size = session.get_modelmeta().custom_metadata_map.get(WINDOW_KEY)
    return int(size) if size else None


def _load(model: Path, threads: int) -> Any:
    options = ort.SessionOptions()
    # onnxruntime counts the machine's cores by itself, not those that this process may use.
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if threads >= available_cores():
        # Threads that wait actively for the next pass take their cores from whoever shares them, a
        # target perhaps: 35 ms of CPU for each pass of 6, where sleeping takes 16. A pass alone on
        # its cores is a tenth longer without.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has exception types of its own, without a base
        raise FailedPreconditionError(
            f"onnxruntime {ort.__version__} cannot load {model}: {cause(error)}. "
            "Export or download the model again, or upgrade onnxruntime.",
            reason="ONNX_MODEL_BROKEN",
        ) from error
