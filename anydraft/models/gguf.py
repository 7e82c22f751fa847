"""A GGUF file read once, and compared with what transformers makes of it.

What the file says beyond what transformers obeys is in `gguf_config`, `gguf_rope` and
`gguf_tokenizer`.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from anydraft.models.gguf_config import check_tensors, obey_metadata
from anydraft.models.gguf_rope import ROPE_TENSORS

logger = logging.getLogger(__name__)

_PATCHING = threading.Lock()
# What generate reads from generation_config, where the file recommends how to sample.
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


@contextmanager
def read_once(progress: bool) -> Iterator[None]:
    """Within it, transformers parses each GGUF file and builds each map of names once.

    Without it a model takes three to four times as long to load (SmolLM2-135M: 22 s against 6 s,
    Qwen2.5-0.5B: 55 s against 17 s, on one core). The vocabulary, hundreds of thousands of strings,
    is parsed through numpy.memmap for the configuration, the tokenizer and the weights each, and
    the map of names is rebuilt for each of several hundred modules.

    It patches modules, so one thread at a time may load.
    """
    import gguf
    import numpy as np
    from transformers import modeling_gguf_pytorch_utils as loader

    class PlainReader(gguf.GGUFReader):
        """Slices of a plain array cost a fraction of slices of a memmap, and are the same bytes."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value.view(np.ndarray) if name == "data" else value)

    patches: list[tuple[Any, str, Any]] = [
        (gguf, "GGUFReader", functools.cache(PlainReader)),
        (gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map)),
    ]
    if hasattr(loader, "tqdm"):
        patches.append((loader, "tqdm", functools.partial(loader.tqdm, disable=not progress)))
    with _PATCHING:
        originals = [(module, name, getattr(module, name)) for module, name, _ in patches]
        for module, name, replacement in patches:
            setattr(module, name, replacement)
        try:
            yield
        finally:
            for module, name, original in originals:
                setattr(module, name, original)


def read_fields(path: Path) -> Mapping[str, Any]:
    """The metadata by key, whose values are `.contents()`; cheap inside `read_once`."""
    fields: Mapping[str, Any] = _reader(path).fields
    return fields


def obey(config: Any, path: Path) -> None:
    """Make `config` say what the file says. Raises UnsupportedModelError naming what cannot be."""
    reader = _reader(path)
    # The vocabulary is the tokenizer's, and slow to make into Python objects.
    facts = {
        key: field.contents()
        for key, field in reader.fields.items()
        if not key.startswith("tokenizer.")
    }
    # A configuration has defaults for these, which mean other tokens in this vocabulary.
    for token in ("bos", "pad"):
        key = "padding" if token == "pad" else token
        if f"tokenizer.ggml.{key}_token_id" not in reader.fields:
            setattr(config, f"{token}_token_id", None)
    factors = {tensor.name: tensor.data for tensor in reader.tensors if tensor.name in ROPE_TENSORS}
    obey_metadata(config, facts, factors, path.name)


def require_every_tensor(model: Any, loading: Mapping[str, Any], path: Path) -> None:
    """Raise UnsupportedModelError unless every tensor of the file went into `model`, and every
    parameter came from one. `loading` is what from_pretrained tells of it."""
    from transformers import modeling_gguf_pytorch_utils
    from transformers.integrations.gguf.utils import is_gguf_arch_supported

    loader: Any = modeling_gguf_pytorch_utils
    reader = _reader(path)
    architecture = str(reader.fields["general.architecture"].contents())
    names = [tensor.name for tensor in reader.tensors]
    if is_gguf_arch_supported(architecture):
        check_tensors(loading["unexpected_keys"], (), loading["missing_keys"], path.name)
        return
    processor = loader.TENSOR_PROCESSORS.get(architecture, loader.TensorProcessor)(
        config=model.config.to_dict()
    )
    mapped = {*loader.get_gguf_hf_weights_map(model, processor)}
    if architecture == "gpt2":
        mapped.add("output.weight")
    check_tensors(names, mapped, loading["missing_keys"], path.name)


def recommended_sampling(path: Path) -> dict[str, Any]:
    """Fields of generation_config for how the file recommends to sample (`general.sampling.*`)."""
    fields = read_fields(path)
    said = {}
    for key, name in _SAMPLING.items():
        if (field := fields.get(f"general.sampling.{key}")) is not None:
            said[name] = field.contents()
    others = [
        key
        for key in fields
        if key.startswith("general.sampling.") and key.rpartition(".")[2] not in _SAMPLING
    ]
    if others:
        logger.warning("%s recommends %s, which is ignored.", path.name, ", ".join(others))
    if said and said.get("temperature", 1.0) > 0:
        return said | {"do_sample": True}
    return {}


def _reader(path: Path) -> Any:
    import gguf

    return gguf.GGUFReader(str(path))
