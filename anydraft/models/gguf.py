"""Two repairs to how transformers reads a GGUF file: it reads it three times, slowly, and it cuts
the text of some tokenizers in other places than the model was trained with.

Both concern llama, qwen2, gemma3 and the other architectures that transformers 5 still loads
through the `gguf` package. A transformers that no longer goes that way is unaffected.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

_PATCHING = threading.Lock()

# llama.cpp's names of pre-tokenizers that split digits one by one before anything else
# (src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM and its neighbours). transformers takes them for
# GPT-2's, which joins "\n\n1" and "  1" differently.
_SPLITS_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
# Those whose own tokenizer.json composes characters first.
_COMPOSES = {"qwen2"}
_LIKE_GPT2 = {"gpt-2", "phi-2", "mpt", "olmo", "jais"}


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


def read_text_field(path: Path, key: str) -> str | None:
    """A string of the metadata; cheap inside `read_once`, which has parsed the file."""
    field = _fields(path).get(key)
    return str(field.contents()) if field is not None else None


def end_token_ids(path: Path) -> list[int]:
    """Every id that ends an answer: `eos`, and the end-of-turn that transformers leaves out."""
    fields = _fields(path)
    keys = [f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom")]
    ids = [int(fields[key].contents()) for key in keys if key in fields]
    return list(dict.fromkeys(ids))


def repair_tokenizer(tokenizer: Any, path: Path) -> None:
    """Make a tokenizer that transformers converted from `path` cut text as its model expects."""
    from tokenizers import normalizers, pre_tokenizers

    if read_text_field(path, "tokenizer.ggml.model") != "gpt2":
        return
    backend = tokenizer.backend_tokenizer
    kind = read_text_field(path, "tokenizer.ggml.pre") or "default"
    if kind in _SPLITS_DIGITS:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif kind in _COMPOSES:
        backend.normalizer = normalizers.NFC()
    elif kind not in _LIKE_GPT2 and not _is_known(kind):
        logger.warning(
            "%s has a tokenizer of the kind %r, which transformers reads as GPT-2's; text may be "
            "cut in other places than the model was trained with. The model's dense repository "
            "has the exact tokenizer.",
            path.name,
            kind,
        )


def _fields(path: Path) -> Any:
    import gguf

    return gguf.GGUFReader(str(path)).fields


def _is_known(kind: str) -> bool:
    """Whether transformers has a split of its own for this kind."""
    try:
        from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping
    except ImportError:
        return True
    return kind in getattr(mapping, "GGUF_PRE_TOKENIZER_SPLITS", {kind: None})
