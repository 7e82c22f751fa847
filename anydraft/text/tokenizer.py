"""One tokenizer, seen as bytes.

Works on the `tokenizers` library alone; transformers is never imported. Nothing here re-encodes
what a model generated: ids are the truth, and this module says which bytes they stand for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from anydraft.errors import FailedPreconditionError, InvalidRequestError, UnsupportedModelError
from anydraft.text.chat import Message, render_messages
from anydraft.text.lenient_chat import render_messages_leniently
from anydraft.text.roundtrip import check_decoder
from anydraft.text.template_process import PROCESSES
from anydraft.text.token_bytes import TokenBytes
from anydraft.text.tokenizer_files import TokenizerConfig, default_template, load_backend
from anydraft.v1 import prompt_pb2

_Renderer = Callable[[Sequence[Message], str | None, Mapping[str, str]], tuple[str, bool]]


class TextTokenizer:
    """Text to ids, and each id to the bytes that it adds to running text.

    "Running text" is text with at least one token before it: there, the concatenated
    `token_bytes` of ids equal what they add to the tokenizer's own decoding (invalid bytes aside,
    see `StreamingDetokenizer`). Safe to share between threads.
    """

    def __init__(
        self,
        backend: Tokenizer,
        *,
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        """`backend` must neither truncate nor pad, and must not be changed afterwards.

        Raises UnsupportedModelError when its decoder cannot be taken apart into tokens, and
        FailedPreconditionError when the decoder is not that of the vocabulary.
        """
        self.backend = backend
        self.special_tokens: Mapping[str, str] = dict(special_tokens or {})
        """By the names that chat templates use: "bos_token" -> "<s>"."""
        self.chat_template = chat_template
        added = backend.get_added_tokens_decoder()
        self.vocab_size: int = max(backend.get_vocab_size(), 1 + max(added, default=-1))
        """Ids from 0 up, added tokens counted."""
        self.id_limit = self.vocab_size
        """Ids from here on must not reach the model: it has no rows for them."""
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self._bytes = TokenBytes(backend)
        self.byte_fallback = self._bytes.byte_fallback
        self.unknown_id = _unknown_id(backend)
        """Stands for text that the vocabulary cannot write; None when it can write everything."""
        check_decoder(self)

    @classmethod
    def from_folder(cls, folder: Path) -> TextTokenizer:
        """Reads tokenizer.json and, where present, tokenizer_config.json, special_tokens_map.json
        and chat_template.jinja. Raises FailedPreconditionError naming the file that is wrong."""
        backend = load_backend(folder)
        config = TokenizerConfig.read(folder)
        config.apply(backend)
        if config.chat_template is not None:
            PROCESSES.warm_up()
        return cls(
            backend, special_tokens=config.special_tokens, chat_template=config.chat_template
        )

    @classmethod
    def from_transformers(cls, tokenizer: Any) -> TextTokenizer:
        """Takes over the `tokenizers` backend of a loaded transformers tokenizer, which must not
        be asked to pad or truncate afterwards (that would change the shared backend)."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise UnsupportedModelError(
                f"{type(tokenizer).__name__} does not run on the tokenizers library, so its tokens "
                "cannot be seen as bytes. Use a copy of the model that has a tokenizer.json.",
                reason="TOKENIZER_UNSUPPORTED",
            )
        backend.no_truncation()
        backend.no_padding()
        template = default_template(tokenizer.chat_template)
        if template is not None:
            PROCESSES.warm_up()
        return cls(backend, special_tokens=tokenizer.special_tokens_map, chat_template=template)

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """Ids of `text`; special tokens written out in it become themselves.

        Other threads go on meanwhile: of the library's ways to encode, only those for a batch let
        go of the interpreter lock (and the fast one of these is the fastest for one text, too).
        """
        try:
            batch = self.backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
            ids: list[int] = batch[0].ids
        except TypeError as error:
            raise InvalidRequestError(
                "The text holds a lone surrogate, which no encoding can carry. Send valid Unicode.",
                reason="TEXT_INVALID",
            ) from error
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        """What this id adds to running text; empty for ids that the tokenizer does not know
        (rows that pad a model's embedding). Special tokens stand for their literal text."""
        return self._bytes[token_id]

    def text_bytes(self, ids: Iterable[int]) -> bytes:
        """The `token_bytes` of all `ids`, one after the other."""
        return b"".join(map(self._bytes.__getitem__, ids))

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def is_byte_token(self, token_id: int) -> bool:
        """Whether this is a `<0x..>` token of byte fallback."""
        return self._bytes.is_byte(token_id)

    def byte_id(self, byte: int) -> int | None:
        """The token that stands for exactly this byte, if there is one."""
        return self._bytes.id_of_byte(byte)

    def encode_prompt(self, prompt: prompt_pb2.Prompt) -> list[int]:
        """Text is encoded with the special tokens of the model around it; messages are rendered
        with the model's chat template, which writes its own. Raises InvalidRequestError when
        nothing is asked, the template refuses the messages, or the model has no row for an id."""
        ids = self._encode_prompt(prompt, render_messages)
        if max(ids) >= self.id_limit:
            foreign = self.token_bytes(max(ids)).decode(errors="replace")
            raise InvalidRequestError(
                f"The prompt holds {foreign}, which this model has no row for. Leave it out.",
                reason="PROMPT_TOKEN_UNKNOWN",
            )
        return ids

    def encode_prompt_leniently(self, prompt: prompt_pb2.Prompt) -> list[int]:
        """For assistants: as `encode_prompt`, but messages that the template refuses are brought
        into a form that it accepts, and ids that the model has no row for are left out. Raises
        InvalidRequestError only when nothing is asked."""
        ids = self._encode_prompt(prompt, render_messages_leniently)
        return [token_id for token_id in ids if token_id < self.id_limit]

    def _encode_prompt(self, prompt: prompt_pb2.Prompt, render: _Renderer) -> list[int]:
        if prompt.WhichOneof("prompt") == "messages":
            text, add_special_tokens = render(
                prompt.messages.messages, self.chat_template, self.special_tokens
            )
        else:
            text, add_special_tokens = prompt.text, True
        ids = self.encode(text, add_special_tokens=add_special_tokens)
        if not ids:
            raise InvalidRequestError(
                "The prompt is empty. Send text, or at least one message.", reason="PROMPT_EMPTY"
            )
        return ids

    def check_vocabulary(self, model_rows: int) -> None:
        """Raises FailedPreconditionError when the vocabulary goes beyond the model's `model_rows`
        embedding rows: the files are then of two different models. More rows than ids are padding.
        Added tokens may lie beyond (Gemma 3's image token, in its text-only models); afterwards
        `id_limit` keeps them away from the model."""
        vocabulary = self.backend.get_vocab_size(with_added_tokens=False)
        if vocabulary > model_rows:
            raise FailedPreconditionError(
                f"The tokenizer has {vocabulary} ids and the model {model_rows} rows, so they are "
                "of different models. Put the model's own tokenizer.json beside its weights.",
                reason="TOKENIZER_MISMATCH",
            )
        self.id_limit = min(self.id_limit, model_rows)


def _unknown_id(backend: Tokenizer) -> int | None:
    model = backend.model
    unknown = getattr(model, "unk_token", None)
    if unknown is not None:
        token_id: int | None = backend.token_to_id(unknown)
        return token_id
    if type(model).__name__ != "Unigram":
        return None
    # The library shows a Unigram's unknown id in its serialized form only, beside the vocabulary.
    state = model.__getstate__()
    found = re.search(rb'"unk_id":\s*(\d+)', state[:200]) or re.search(
        rb'"unk_id":\s*(\d+)', state[-200:]
    )
    return int(found[1]) if found else json.loads(state).get("unk_id")
