"""What each token id stands for, as bytes, read off the `decoder` section of a tokenizer.

A tokenizer turns ids into text in one go; a stream needs the bytes of every id by itself. For the
decoders of today's language models these are the same thing once some text stands before the
token: rules about the start of a text (dropping the first space) no longer apply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from tokenizers import Tokenizer

TextStep = Callable[[str], str]

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")

# What tokenizers' WordPiece decoder does to each token when `cleanup` is set, in its order.
_WORDPIECE_CLEANUP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def byte_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes for the 256 bytes (GPT-2's `bytes_to_unicode`)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return alphabet


BYTE_ALPHABET = byte_alphabet()


class TokenBytes:
    """Id to bytes, computed on first use: a vocabulary of 262k entries costs nothing up front."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._cache: dict[int, bytes] = {}
        decoder = backend.decoder
        steps = _flatten(json.loads(decoder.__getstate__())) if decoder is not None else []
        kinds = {step["type"] for step in steps}
        self.byte_level = "ByteLevel" in kinds
        self.byte_fallback = "ByteFallback" in kinds
        """Whether `<0xE4>` stands for a byte, and an invalid run of them for one U+FFFD a byte."""
        self._piece_bytes = _join_by_space if decoder is None else _piece_decoder(steps)
        self._literals = _literals(backend) if self.byte_level else {}
        self._anchor: tuple[int, str] | None = None

    def __getitem__(self, token_id: int) -> bytes:
        cached = self._cache.get(token_id)
        if cached is None:
            cached = self._cache[token_id] = self._compute(token_id)
        return cached

    def is_byte(self, token_id: int) -> bool:
        """Whether this is one of the `<0x00>`…`<0xFF>` tokens of byte fallback."""
        if not self.byte_fallback or token_id < 0:
            return False
        piece = self._backend.id_to_token(token_id)
        return piece is not None and _BYTE_TOKEN.fullmatch(piece) is not None

    def id_of_byte(self, byte: int) -> int | None:
        """The token that stands for exactly this byte, if the vocabulary has one."""
        if self.byte_fallback:
            piece = f"<0x{byte:02X}>"
        elif self.byte_level:
            piece = next(char for char, value in BYTE_ALPHABET.items() if value == byte)
        else:
            return None
        token_id: int | None = self._backend.token_to_id(piece)
        # An added token may have this spelling and mean the character.
        return token_id if token_id is not None and self[token_id] == bytes([byte]) else None

    def _compute(self, token_id: int) -> bytes:
        literal = self._literals.get(token_id)
        if literal is not None:
            return literal
        piece = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if piece is None:
            return b""
        if self._piece_bytes is not None:
            return self._piece_bytes(piece)
        return self._probe(token_id)

    def _probe(self, token_id: int) -> bytes:
        """What `token_id` adds to the text of some token before it, for decoders unknown to us."""
        if self._anchor is None:
            anchor_id = self._backend.encode("a", add_special_tokens=False).ids[0]
            self._anchor = anchor_id, self._decode([anchor_id])
        anchor_id, anchor_text = self._anchor
        return self._decode([anchor_id, token_id]).removeprefix(anchor_text).encode()

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._backend.decode(ids, skip_special_tokens=False)
        return text


def _literals(backend: Tokenizer) -> dict[int, bytes]:
    """The added tokens of a byte-level vocabulary, which stand for their content as it is written.

    The library (0.23) reads their letters as names of bytes, so that "ñandú" comes out broken.
    Those that the vocabulary itself also makes out of bytes ("Ġthe") do stand for these bytes.
    """
    model = backend.model
    return {
        token_id: token.content.encode()
        for token_id, token in backend.get_added_tokens_decoder().items()
        if [made.id for made in model.tokenize(token.content)] != [token_id]
    }


def _flatten(spec: dict[str, Any]) -> list[dict[str, Any]]:
    if spec["type"] != "Sequence":
        return [spec]
    return [step for inner in spec["decoders"] for step in _flatten(inner)]


def _piece_decoder(steps: Sequence[dict[str, Any]]) -> Callable[[str], bytes] | None:
    """The bytes of one token under these decoder steps; None when a step is not known to act on
    every token by itself.

    Steps before `Fuse` see one token each; those after it see the whole text, so that only what
    cannot reach across tokens, or acts at the start of the text alone, can be told from here.
    """
    text_steps: list[TextStep] = []
    ending: Callable[[str], bytes] = str.encode
    fused = False
    for step in steps:
        kind = step["type"]
        if kind == "Fuse":
            fused = True
        elif fused:
            if kind == "Strip" and step["stop"] == 0:
                continue
            late = _replace(step) if kind == "Replace" else None
            if late is None or ending is not str.encode or len(step["pattern"]["String"]) != 1:
                return None
            text_steps.append(late)
        elif ending is not str.encode:
            return None
        elif kind == "ByteLevel":
            ending, fused = _byte_level, True
        elif kind == "ByteFallback":
            ending = _byte_fallback
        else:
            early = _text_step(step)
            if early is None:
                return None
            text_steps.append(early)

    def decode(piece: str) -> bytes:
        for text_step in text_steps:
            piece = text_step(piece)
        return ending(piece)

    return decode


def _text_step(step: dict[str, Any]) -> TextStep | None:
    match step["type"]:
        case "Replace":
            return _replace(step)
        case "Metaspace":
            mark = step["replacement"]
            return lambda piece: piece.replace(mark, " ")
        case "Strip":
            return _strip(step)
        case "WordPiece":
            return _wordpiece(step)
        case _:
            return None


def _replace(step: dict[str, Any]) -> TextStep | None:
    pattern, content = step["pattern"].get("String"), step["content"]
    if not pattern:
        return None
    return lambda piece: piece.replace(pattern, content)


def _strip(step: dict[str, Any]) -> TextStep:
    content, start, stop = step["content"], step["start"], step["stop"]

    def strip(piece: str) -> str:
        for _ in range(start):
            piece = piece.removeprefix(content)
        for _ in range(stop):
            piece = piece.removesuffix(content)
        return piece

    return strip


def _wordpiece(step: dict[str, Any]) -> TextStep:
    prefix, cleanup = step["prefix"], step["cleanup"]

    def join(piece: str) -> str:
        piece = piece.removeprefix(prefix) if piece.startswith(prefix) else " " + piece
        if cleanup:
            for spaced, tight in _WORDPIECE_CLEANUP:
                piece = piece.replace(spaced, tight)
        return piece

    return join


def _byte_level(piece: str) -> bytes:
    try:
        return bytes([BYTE_ALPHABET[char] for char in piece])
    except KeyError:  # a token outside the alphabet stands for its own text
        return piece.encode()


def _byte_fallback(piece: str) -> bytes:
    if _BYTE_TOKEN.fullmatch(piece):
        return bytes([int(piece[3:5], 16)])
    return piece.encode()


def _join_by_space(piece: str) -> bytes:
    return b" " + piece.encode()
