"""`tokenizer.json` and what lies beside it: named special tokens, added tokens, chat template.

Follows transformers 5: with a `tokenizer.json` there, `add_bos_token` and `add_eos_token` of the
config mean nothing, the post-processor of the file does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from anydraft.errors import FailedPreconditionError

# transformers' SPECIAL_TOKENS_ATTRIBUTES: the names that chat templates may use.
SPECIAL_TOKEN_NAMES = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


@dataclass(frozen=True)
class TokenizerConfig:
    """The parts of `tokenizer_config.json` and its neighbours that change encoding or prompts."""

    special_tokens: Mapping[str, str]
    added_tokens: Sequence[AddedToken]
    """What the model's tokenizer must know beside the vocabulary, in the order of their ids."""
    chat_template: str | None

    @classmethod
    def read(cls, folder: Path) -> TokenizerConfig:
        config = _read_json(folder / "tokenizer_config.json")
        if "added_tokens_decoder" not in config:
            config = {**config, **_read_json(folder / "special_tokens_map.json")}
        special_tokens = {
            name: content
            for name in SPECIAL_TOKEN_NAMES
            if (content := _content(config.get(name))) is not None
        }
        return cls(
            special_tokens=special_tokens,
            added_tokens=_added_tokens(config, special_tokens),
            chat_template=_read_template(folder, config),
        )

    def apply(self, backend: Tokenizer) -> None:
        """Gives `backend` what transformers adds to it from these files when it loads them."""
        backend.no_truncation()
        backend.no_padding()
        known = {token.content for token in backend.get_added_tokens_decoder().values()}
        missing = [token for token in self.added_tokens if token.content not in known]
        if missing:
            backend.add_tokens(missing)


def load_backend(folder: Path) -> Tokenizer:
    """Reads `tokenizer.json`; FailedPreconditionError when it is missing or broken."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise FailedPreconditionError(
            f"{folder} has no tokenizer.json. Save the model's tokenizer there with transformers: "
            "AutoTokenizer.from_pretrained(model).save_pretrained(folder).",
            reason="MODEL_FILES_MISSING",
        )
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises bare Exception
        raise FailedPreconditionError(
            f"{file} is not a tokenizer of the tokenizers library ({error}). "
            "Download it again, or upgrade tokenizers if the model is newer than it.",
            reason="TOKENIZER_BROKEN",
        ) from error


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FailedPreconditionError(
            f"{file} is not JSON ({error}). Download it again.", reason="TOKENIZER_BROKEN"
        ) from error
    if not isinstance(value, dict):
        raise FailedPreconditionError(
            f"{file} does not hold a JSON object. Download it again.", reason="TOKENIZER_BROKEN"
        )
    return value


def _added_tokens(config: Mapping[str, Any], special_tokens: Mapping[str, str]) -> list[AddedToken]:
    by_id = config.get("added_tokens_decoder") or {}
    tokens = [_added_token(by_id[token_id]) for token_id in sorted(by_id, key=int)]
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or ()
    named = [*special_tokens.values(), *(extra.values() if isinstance(extra, dict) else extra)]
    tokens += [AddedToken(content, special=True) for t in named if (content := _content(t))]
    return list({token.content: token for token in reversed(tokens)}.values())[::-1]


def _added_token(fields: Mapping[str, Any]) -> AddedToken:
    flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return AddedToken(fields["content"], **{name: fields[name] for name in flags if name in fields})


def _content(token: Any) -> str | None:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _read_template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    return default_template(config.get("chat_template"))


def default_template(template: Any) -> str | None:
    """A template, or the "default" one of several named ones; None when there is none."""
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None
