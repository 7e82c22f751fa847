"""The check at load that a tokenizer's decoder and its vocabulary belong together."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from anydraft.errors import FailedPreconditionError, UnsupportedModelError

if TYPE_CHECKING:
    from anydraft.text.tokenizer import TextTokenizer

SAMPLES = (
    "Hello, world. It's 12:30; the quick brown fox jumps over the lazy dog.",
    "def add(left, right):\n\treturn {'sum': left + right}  # [1] <b>&amp;</b> x_y != 3.5e-7\n",
    "  two  spaces,\r\n\r\n\ta tab   and a line's end \n",
    "Le naïf garçon a mangé des crêpes à Besançon — «voilà», “so” it went… on.",
    "In Russian: Привет, мир! In Greek: Γειά σου, κόσμε.",
    "In Hebrew: שלום עולם. In Arabic: مرحبا بالعالم. In Hindi: नमस्ते दुनिया।.",
    "In Chinese: 你好，世界。 In Japanese: 日本語のテキスト。 In Korean: 안녕하세요 세계.",
    "Faces 🙂 👍🏽 and 👩‍👩‍👧 at 20 °C, 3 × 4 = 12.",
)
"""Several scripts, code, emoji and whitespace. None holds what a vocabulary writes for a space, and
all begin and end with whole characters in any vocabulary."""


def check_decoder(tokenizer: TextTokenizer) -> None:
    """Raises UnsupportedModelError when the decoder looks across tokens, and
    FailedPreconditionError when it does not undo what the vocabulary does to a text.

    What a tokenizer may do to a text is allowed: its normalizer's work, other whitespace, words
    and characters that it has no token for.
    """
    for sample in SAMPLES:
        ids = _vocabulary_ids(tokenizer, sample)
        if ids:
            _check_joins(tokenizer, ids)
            _check_text(tokenizer, sample, ids)


def _vocabulary_ids(tokenizer: TextTokenizer, sample: str) -> list[int]:
    """The sample's ids but for what is unknown, and for added tokens: releases of the library
    differ in how they decode these."""
    left_out = {*tokenizer.backend.get_added_tokens_decoder(), tokenizer.unknown_id}
    return [token_id for token_id in tokenizer.encode(sample) if token_id not in left_out]


def _check_text(tokenizer: TextTokenizer, sample: str, ids: list[int]) -> None:
    written = tokenizer.text_bytes(ids).decode(errors="replace")
    normalizer = tokenizer.backend.normalizer
    meant = [sample] if normalizer is None else [sample, normalizer.normalize_str(sample)]
    if not any(_is_part(_fold(written), _fold(text)) for text in meant):
        raise FailedPreconditionError(
            f"The tokenizer writes {sample[:40]!r} as {written[:60]!r}: its decoder does not "
            "belong to its vocabulary. Put the model's own tokenizer.json beside its weights, or "
            'correct the "decoder" section of this one.',
            reason="TOKENIZER_DECODER_MISMATCH",
        )


def _check_joins(tokenizer: TextTokenizer, ids: list[int]) -> None:
    ids = ids + ids[-1:] * 2  # decoders for speech leave repeats out
    whole = tokenizer.backend.decode(ids, skip_special_tokens=False)
    first = tokenizer.backend.decode(ids[:1], skip_special_tokens=False)
    if whole != first + tokenizer.text_bytes(ids[1:]).decode(errors="replace"):
        raise UnsupportedModelError(
            "The tokenizer's decoder joins tokens in a way that does not show in the tokens "
            "by themselves, so text cannot be streamed exactly. Use another model.",
            reason="TOKENIZER_UNSUPPORTED",
        )


def _fold(text: str) -> str:
    return "".join(unicodedata.normalize("NFKD", text).casefold().split())


def _is_part(part: str, whole: str) -> bool:
    """Whether `whole` becomes `part` when characters are left out."""
    rest = iter(whole)
    return all(character in rest for character in part)
