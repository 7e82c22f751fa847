"""Small tokenizers of every family, made from a text of our own, the same on every run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The verifier checks every draft in one forward pass, and commits what the target would say.",
    "def add(left, right):\n    return left + right\n\n\nfor index in range(9):\n    print(index)",
    "Numbers such as 3, 14, 159 and 2653 are split by some tokenizers; others keep 2024 whole.",
    "It's what they'd say: \"don't wait\", isn't it? We've seen that they're late, I'm sure.",
    "Le naïf garçon a mangé des crêpes à l'été. Über allen Gipfeln ist Ruh'. Привет, мир!",
    "你好，世界。今天天气很好，我们去公园散步吧。日本語のテキストも少しあります。",
    "emoji 🙂 🙃 👍 and ZWJ 👩‍👩‍👧 sequences; tab\tand\ttabs; spaces    in   runs.\r\n\r\nNew.",
    "aaaa aaaaaaaa abab abababab the the the the hello world hello world hello hello",
] * 4

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<think>", "[TOOL]"]

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_SPLIT = QWEN_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def _finish(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in ADDED])
    return tokenizer


def _byte_level(pre_tokenizer: pre_tokenizers.PreTokenizer, vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return _finish(tokenizer)


def gpt2(vocab_size: int = 500) -> Tokenizer:
    return _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), vocab_size)


def _split_then_bytes(pattern: str) -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, plain])


def qwen(vocab_size: int = 500) -> Tokenizer:
    tokenizer = _byte_level(_split_then_bytes(QWEN_SPLIT), vocab_size)
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def llama3(vocab_size: int = 500) -> Tokenizer:
    tokenizer = _byte_level(_split_then_bytes(LLAMA3_SPLIT), vocab_size)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def _sentencepiece(prepend: str, vocab_size: int, *, split: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=True)
    bytes_first = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    alphabet = _most_frequent("".join(CORPUS).replace(" ", "▁"), 60)
    trainer = trainers.BpeTrainer(
        vocab_size=256 + vocab_size,
        special_tokens=bytes_first,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer = _without_byte_specials(tokenizer)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend, split=split)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prepend != "never":
        steps.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(steps)
    return _finish(tokenizer)


def _most_frequent(parts: Iterable[str], size: int) -> list[str]:
    """In one order on every run. A trainer's own choice among equally frequent parts is not."""
    counts = Counter(parts)
    return sorted(counts, key=lambda part: (-counts[part], part))[:size]


def _without_byte_specials(tokenizer: Tokenizer) -> Tokenizer:
    # The trainer can put byte tokens into a vocabulary only as special tokens; real ones are plain.
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] == "<unk>"]
    return Tokenizer.from_str(json.dumps(spec))


def metaspace_always(vocab_size: int = 300) -> Tokenizer:
    return _sentencepiece("always", vocab_size)


def metaspace_first(vocab_size: int = 300) -> Tokenizer:
    """As transformers builds Llama-2 and Mistral."""
    return _sentencepiece("first", vocab_size, split=False)


def metaspace_never(vocab_size: int = 300) -> Tokenizer:
    return _sentencepiece("never", vocab_size)


def llama2_legacy(vocab_size: int = 300) -> Tokenizer:
    """As in Llama-2's own tokenizer.json: a normalizer writes the spaces."""
    tokenizer = _sentencepiece("always", vocab_size)
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return tokenizer


def gemma(vocab_size: int = 300) -> Tokenizer:
    """No prefix space, and a split that keeps spaces with the word before."""
    tokenizer = _sentencepiece("never", vocab_size)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    return tokenizer


def unigram(vocab_size: int = 400) -> Tokenizer:
    """As T5: lossy, since what is not in the vocabulary is unknown."""
    words = _most_frequent(["▁" + word for word in " ".join(CORPUS).split()], vocab_size // 2)
    characters = _most_frequent("".join(CORPUS).replace(" ", "▁"), vocab_size // 2)
    # A word is worth more than its characters one by one.
    pieces = [*((word, -4.0) for word in words), *((character, -6.0) for character in characters)]
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), *pieces], unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _finish(tokenizer)


def lowercase(vocab_size: int = 500) -> Tokenizer:
    """Byte-level behind a normalizer that changes the text."""
    tokenizer = gpt2(vocab_size)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    return tokenizer


def wordpiece(vocab_size: int = 400) -> Tokenizer:
    """As BERT: lossy in spaces, case and unknown words."""
    words = _most_frequent(" ".join(CORPUS).lower().split(), vocab_size // 2)
    characters = _most_frequent("".join("".join(CORPUS).lower().split()), vocab_size // 4)
    pieces = dict.fromkeys(["[UNK]", *characters, *(f"##{c}" for c in characters), *words])
    vocab = {piece: token_id for token_id, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return _finish(tokenizer)


EXACT: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": gpt2,
    "llama3": llama3,
    "metaspace_always": metaspace_always,
    "metaspace_first": metaspace_first,
    "metaspace_never": metaspace_never,
    "llama2_legacy": llama2_legacy,
    "gemma": gemma,
}
"""Can write every text, and change none."""

LOSSY: dict[str, Callable[[], Tokenizer]] = {
    "qwen": qwen,
    "unigram": unigram,
    "lowercase": lowercase,
    "wordpiece": wordpiece,
}
"""Change or lose some texts."""

ALL = {**EXACT, **LOSSY}


@cache
def build(name: str) -> Tokenizer:
    """One tokenizer by name, built once. Not to be changed."""
    return ALL[name]()
