"""The cache of an assistant on torch: transformers' own, cut and rearranged by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from anydraft.errors import UnsupportedModelError
from draft_node.engines.cache import Array, Pass, TreePlaces

_FULL, _SLIDING = "full_attention", "sliding_attention"


class TorchCache:
    """See `draft_node.engines.cache.TreeCache`."""

    def __init__(self, model: Any, *, trees: bool) -> None:
        """With `trees` every layer keeps all tokens in the order of their slots, sliding ones too,
        and a mask says what is seen; without, the model's own layers and masks decide."""
        self._model = model
        self._device = model.get_input_embeddings().weight.device
        cache = DynamicCache() if trees else DynamicCache(config=model.config)
        self._cache = cast(Any, cache)
        if not trees:
            check_layers(self._cache.layers)
            # Sliding layers then keep what has left their window, so that any cut is exact.
            self._cache.activate_past_recording()

    @property
    def length(self) -> int:
        return int(self._cache.get_seq_length()) if self.layers else 0

    @length.setter
    def length(self, length: int) -> None:
        """Cuts every layer.

        `DynamicSlidingWindowLayer.crop` would also forget what has left the window, and a second,
        deeper cut would then be wrong without a sign of it.
        """
        for layer in self.layers:
            excess = layer.get_seq_length() - length
            if excess <= 0 or not layer.is_initialized:
                continue
            layer.keys = layer.keys[..., :-excess, :]
            layer.values = layer.values[..., :-excess, :]
            if isinstance(layer, DynamicSlidingWindowLayer):
                layer.cumulative_length -= excess

    @property
    def layers(self) -> list[Any]:
        return cast(list[Any], self._cache.layers)

    def run(self, work: Pass) -> Array:
        before = self.length
        try:
            logits = self._forward(work)
        except BaseException:
            # Some layers may have taken the new tokens already.
            self.length = before
            raise
        return logits

    def move(self, sources: Sequence[int], start: int) -> None:
        taken = torch.tensor([*range(start), *sources], device=self._device)
        for layer in self.layers:
            layer.keys = layer.keys.index_select(-2, taken)
            layer.values = layer.values.index_select(-2, taken)

    def close(self) -> None:
        # Whoever still refers to the cache holds no tensors: the layers own them.
        self.layers.clear()

    @torch.inference_mode()
    def _forward(self, work: Pass) -> Array:
        count = len(work.ids)
        first = work.wanted[0] if len(work.wanted) else count - 1
        places: dict[str, Any] = {}
        if work.tree is not None:
            places["attention_mask"] = self._masks(work.tree)
            places["position_ids"] = self._tensor(work.tree.positions(count))[None]
        output = self._model(
            input_ids=torch.tensor([list(work.ids)], device=self._device),
            cache=self._cache,
            use_cache=True,
            logits_to_keep=count - first,
            **places,
        )
        rows = [at - first for at in work.wanted]
        return np.asarray(output.logits[0, rows].float().cpu().numpy())

    def _masks(self, tree: TreePlaces) -> Any:
        """One mask, or one for each kind of layer where a model has several."""
        kinds = layer_kinds(self._model)
        masks = {kind: self._mask(tree.visible(window)) for kind, window in kinds.items()}
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _mask(self, visible: Array) -> torch.Tensor:
        """[1, 1, new, slots], added to the scores: eager attention knows no other form."""
        dtype = self._model.dtype
        hidden = self._tensor(~visible).to(dtype)
        return (hidden * torch.finfo(dtype).min)[None, None]

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def layer_kinds(model: Any) -> dict[str, int | None]:
    """How far the layers of each kind see, by the names of transformers; None is everything.

    Raises UnsupportedModelError for kinds that are neither full nor sliding.
    """
    config = model.config.get_text_config(decoder=True)
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or [_SLIDING if window else _FULL])
    if not kinds <= {_FULL, _SLIDING}:
        raise cannot_roll_back(f"its layers are of the kinds {', '.join(sorted(kinds))}")
    return {kind: window if kind == _SLIDING else None for kind in sorted(kinds)}


def check_layers(layers: Iterable[Any]) -> None:
    for layer in layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise cannot_roll_back(f"it uses {type(layer).__name__}")


def cannot_roll_back(problem: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"This model cannot draft: {problem}, which cannot be rolled back. "
        "Choose an assistant with plain attention layers.",
        reason="ASSISTANT_CANNOT_ROLL_BACK",
    )
