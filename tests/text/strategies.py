"""Texts that tokenizers get wrong."""

from __future__ import annotations

from hypothesis import strategies as st

SNIPPETS = [
    "👩‍👩‍👧",
    "🙂",
    "🇩🇪",
    "e\u0301",
    "n\u0303a\u0308",
    "\ufffd",
    "\r\n",
    "\n\n",
    "\t",
    "   ",
    " ",
    "你好",
    "日本語",
    "한국어",
    "שלום",
    "مرحبا",
    "ﬁ",
    "Ⅷ",
    "Ünïcode",
    "<|im_end|>",
    "<|im_start|>",
    "<s>",
    "</s>",
    "<0x0A>",
    "<think>",
    "[TOOL]",
    "<unk>",
    "▁",
    "Ġ",
    "é",
    "\x00",
    "\x1b[0m",
    "\u200b",
    "\u2028",
    "\ufeff",
    "don't",
    "1234567",
    " hello",
    "world",
    "The ",
    ";\n",
    "    return x\n",
]

characters = st.characters(codec="utf-8")
repeats = st.builds(
    str.__mul__, st.sampled_from(["a", " ", "ab", "\n", "é", "🙂", "1"]), st.integers(1, 60)
)
texts = st.lists(
    st.one_of(st.sampled_from(SNIPPETS), st.text(characters, max_size=8), repeats), max_size=8
).map("".join)
"""Arbitrary Unicode, rich in what is special to some tokenizer."""

words = st.lists(
    st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=9), min_size=1, max_size=60
).map(" ".join)
"""Lower-case words with single spaces: every tokenizer writes these without loss."""
