"""Tensors with room for more than is ever written, which take memory as it is written.

On a CPU this is what the system does with a mapping of its own; it is given back when the tensor is
gone, whatever the allocator thinks of it. Huge pages are refused: one of them spans the keys of
several heads, and a single token would take the memory of hundreds. A GPU's memory is taken at
once, so there a tensor has room for some tokens more than it holds, and is copied when they are
written: at a GPU's bandwidth a cache of 250 MB takes 0.2 ms, once in `GPU_TOKENS` tokens.
"""

from __future__ import annotations

import math
import mmap

import torch

GPU_TOKENS = 256
_MAPS = hasattr(mmap, "MAP_ANONYMOUS")
_FLAGS = (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if _MAPS else 0
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0)
_NO_HUGE_PAGES = getattr(mmap, "MADV_NOHUGEPAGE", None)


def with_room(
    like: torch.Tensor, held: torch.Tensor | None, num_tokens: int, max_tokens: int
) -> torch.Tensor:
    """A tensor [heads, room, size] for at least `num_tokens` and never more than `max_tokens`: the
    one that is `held` (None: none yet) if it is large enough, else one that begins as it does.

    `like`: [heads, any, size], of the dtype and on the device that are wanted.
    """
    if held is not None and held.shape[1] >= num_tokens:
        return held
    heads, _, size = like.shape
    if like.device.type == "cpu" and _MAPS:
        return _mapped((heads, max_tokens, size), like.dtype)
    room = min(-(-num_tokens // GPU_TOKENS) * GPU_TOKENS, max_tokens)
    larger = like.new_empty((heads, room, size))
    if held is not None:
        larger[:, : held.shape[1]] = held
    return larger


def _mapped(shape: tuple[int, int, int], dtype: torch.dtype) -> torch.Tensor:
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=_FLAGS | _NO_RESERVE)
    if _NO_HUGE_PAGES is not None:
        memory.madvise(_NO_HUGE_PAGES)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
