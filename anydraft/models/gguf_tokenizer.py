"""The tokenizer of a GGUF file, as the file describes it, where transformers' conversion differs.

What is repaired: how text is cut before merging, tokens that are marked as special or added but
spelled outside the byte alphabet, the tokens put before and after a text, the space put before it,
and the ids that end an answer. What cannot be is refused by name.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from anydraft.models.gguf_config import refusal

logger = logging.getLogger(__name__)

# llama.cpp's names of pre-tokenizers that split digits one by one before anything else
# (src/llama-vocab.cpp, LLAMA_VOCAB_PRE_TYPE_SMOLLM and its neighbours). transformers takes them for
# GPT-2's, which joins "\n\n1" and "  1" differently.
_SPLITS_DIGITS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
# Those whose own tokenizer.json composes characters first.
_COMPOSES = {"qwen2"}
_LIKE_GPT2 = {"gpt-2", "phi-2", "mpt", "olmo", "jais"}
# Those that take a piece which is a token as it is, and of them, those in which a text begins with
# BOS unless the file says otherwise (llama_vocab::impl::load).
_IGNORES_MERGES = {
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "tekken",
}
_BEGINS_WITH_BOS = _IGNORES_MERGES - {"falcon3"}

# Ends of a turn or text by their spelling, wherever the vocabulary marks them as control tokens:
# llama.cpp's own rule (special_eog_ids), because files rarely name more than one of them.
_END_SPELLINGS = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
}
_CONTROL, _USER_DEFINED = 3, 4
_PROBE = "a"
_ANSWER = "d7f1c2"

_OBEYED = {
    "model",
    "pre",
    "tokens",
    "scores",
    "token_type",
    "token_type_count",
    "merges",
    "precompiled_charsmap",
    "add_space_prefix",
    "add_bos_token",
    "add_eos_token",
}


def end_token_ids(tokenizer: Any, fields: Mapping[str, Any]) -> list[int]:
    """Every id that ends an answer: those of the keys `eos`, `eot` and `eom`, what the chat
    template writes behind an answer, and control tokens whose spelling says so."""
    keys = [f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom")]
    ends = [int(fields[key].contents()) for key in keys if key in fields]
    if (end := _template_end(tokenizer)) is not None:
        ends.append(end)
    tokens = _contents(fields, "tokens")
    types = _contents(fields, "token_type")
    control = {
        tokens[index] for index in _indices(types, {_CONTROL}) if tokens[index] in _END_SPELLINGS
    }
    if "<|return|>" in control:
        # There, this one ends a message inside of an answer.
        control.discard("<|end|>")
    ends += [index for index, token in enumerate(tokens) if token in control]
    return list(dict.fromkeys(ends))


def repair_tokenizer(tokenizer: Any, fields: Mapping[str, Any], name: str) -> None:
    """Make a tokenizer that transformers converted from a file cut text as its model expects.

    Raises UnsupportedModelError naming the key that cannot be obeyed.
    """
    _refuse_unknown(fields, name)
    kind = _text(fields, "pre")
    if _text(fields, "model") == "gpt2":
        _respell_added(tokenizer, fields)
        _repair_cut(tokenizer.backend_tokenizer, kind, name)
    elif "tokenizer.ggml.add_space_prefix" in fields:
        wanted = bool(fields["tokenizer.ggml.add_space_prefix"].contents())
        _repair_space(tokenizer.backend_tokenizer, wanted, name)
    _repair_ends(tokenizer, fields, kind)


def _refuse_unknown(fields: Mapping[str, Any], name: str) -> None:
    for key in fields:
        stem = key.removeprefix("tokenizer.ggml.")
        if stem == key or stem in _OBEYED or stem.endswith("_token_id"):
            continue
        if value := fields[key].contents():
            raise refusal(name, f"says {key} = {value!r}")


def _repair_cut(backend: Any, kind: str | None, name: str) -> None:
    from tokenizers import normalizers, pre_tokenizers

    if kind in _SPLITS_DIGITS:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif kind in _COMPOSES:
        backend.normalizer = normalizers.NFC()
    elif kind in _IGNORES_MERGES:
        backend.model.ignore_merges = True
    elif kind in (None, "default"):
        logger.warning(
            "%s does not say how its tokenizer cuts text; GPT-2's way is taken, which may not be "
            "how the model was trained. The model's repository has the exact tokenizer.",
            name,
        )
    elif kind not in _LIKE_GPT2 and not _is_known(kind):
        raise refusal(name, f"says tokenizer.ggml.pre = {kind!r}")


def _respell_added(tokenizer: Any, fields: Mapping[str, Any]) -> None:
    """Give tokens that the file marks as special or added their own spelling back.

    transformers spells every token outside the byte alphabet in bytes, and then cannot find those
    that are matched as they are written (`<|User|>` with wide bars, of DeepSeek).
    """
    from tokenizers import Tokenizer

    backend = tokenizer.backend_tokenizer
    tokens = _contents(fields, "tokens")
    types = _contents(fields, "token_type")
    vocabulary = backend.get_vocab()
    lost = [
        index
        for index in _indices(types, {_CONTROL, _USER_DEFINED})
        if vocabulary.get(tokens[index]) != index
    ]
    if not lost:
        return
    spec = json.loads(backend.to_str())
    spelled = {index: token for token, index in spec["model"]["vocab"].items()}
    for index in lost:
        del spec["model"]["vocab"][spelled[index]]
        spec["model"]["vocab"][tokens[index]] = index
        spec["added_tokens"].append(
            {
                "id": index,
                "content": tokens[index],
                "special": types[index] == _CONTROL,
                "normalized": False,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
            }
        )
    spec["added_tokens"].sort(key=lambda token: token["id"])
    tokenizer._tokenizer = Tokenizer.from_str(json.dumps(spec))


def _repair_space(backend: Any, wanted: bool, name: str) -> None:
    """Whether a text begins with a space of its own, for SentencePiece vocabularies."""
    from tokenizers import decoders, normalizers

    has_space = backend.encode(_PROBE, add_special_tokens=False).tokens[0].startswith("\u2581")
    if has_space == wanted:
        return
    if wanted:
        raise refusal(name, "says tokenizer.ggml.add_space_prefix = True")
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.pre_tokenizer = None
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )


def _repair_ends(tokenizer: Any, fields: Mapping[str, Any], kind: str | None) -> None:
    """Put the tokens before and after a text that the file asks for."""
    from tokenizers import processors

    defaults = {"bos": _text(fields, "model") == "llama" or kind in _BEGINS_WITH_BOS, "eos": False}
    ends: dict[str, list[int]] = {}
    for end, default in defaults.items():
        flag, token = (
            fields.get(f"tokenizer.ggml.add_{end}_token"),
            f"tokenizer.ggml.{end}_token_id",
        )
        asked = default if flag is None else bool(flag.contents())
        ends[end] = [int(fields[token].contents())] if asked and token in fields else []
    backend = tokenizer.backend_tokenizer
    plain = backend.encode(_PROBE, add_special_tokens=False).ids
    if backend.encode(_PROBE).ids == [*ends["bos"], *plain, *ends["eos"]]:
        return
    tokens = {end: [backend.id_to_token(index) for index in ids] for end, ids in ends.items()}
    backend.post_processor = processors.TemplateProcessing(
        single=[*tokens["bos"], "$A", *tokens["eos"]],
        special_tokens=[
            (token, index)
            for end in ends
            for token, index in zip(tokens[end], ends[end], strict=True)
        ],
    )


def _template_end(tokenizer: Any) -> int | None:
    """The special token that the chat template writes behind an answer, if it does."""
    if not tokenizer.chat_template:
        return None
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
    try:
        written = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception:
        # A template may refuse anything, in its own words; it then says nothing about ends.
        logger.info("the chat template does not render a plain answer, so it names no end of turn")
        return None
    _, _, behind = written.rpartition(_ANSWER)
    ids = tokenizer.backend_tokenizer.encode(behind.lstrip(), add_special_tokens=False).ids
    if not ids:
        return None
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return ids[0] if ids[0] in added and added[ids[0]].special else None


def _text(fields: Mapping[str, Any], stem: str) -> str | None:
    field = fields.get(f"tokenizer.ggml.{stem}")
    return None if field is None else str(field.contents())


def _contents(fields: Mapping[str, Any], stem: str) -> list[Any]:
    field = fields.get(f"tokenizer.ggml.{stem}")
    return [] if field is None else list(field.contents())


def _indices(types: Iterable[int], wanted: set[int]) -> list[int]:
    return [index for index, kind in enumerate(types) if kind in wanted]


def _is_known(kind: str) -> bool:
    """Whether transformers has a split of its own for this kind."""
    try:
        from transformers.integrations.gguf import gguf_tokenizer_mapping as mapping
    except ImportError:
        return True
    return kind in getattr(mapping, "GGUF_PRE_TOKENIZER_SPLITS", {kind: None})
