"""What lies beside a `tokenizer.json`: named special tokens, chat template, encoding flags."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

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

    special_tokens: dict[str, str] = field(default_factory=dict)
    extra_special_tokens: tuple[str, ...] = ()
    chat_template: str | None = None
    add_bos_token: bool | None = None
    """None leaves the post-processor of `tokenizer.json` as it is."""
    add_eos_token: bool | None = None

    @classmethod
    def read(cls, folder: Path) -> TokenizerConfig:
        config = _read_json(folder / "tokenizer_config.json")
        named = {**_read_json(folder / "special_tokens_map.json"), **config}
        extra = named.get("extra_special_tokens") or named.get("additional_special_tokens") or ()
        if isinstance(extra, dict):
            extra = extra.values()
        return cls(
            special_tokens={
                name: content
                for name in SPECIAL_TOKEN_NAMES
                if (content := _content(named.get(name))) is not None
            },
            extra_special_tokens=tuple(c for token in extra if (c := _content(token)) is not None),
            chat_template=_read_template(folder, config),
            add_bos_token=config.get("add_bos_token"),
            add_eos_token=config.get("add_eos_token"),
        )

    def apply(self, backend: Tokenizer) -> None:
        """Gives `backend` what transformers adds to it from these files when it loads them."""
        backend.no_truncation()
        backend.no_padding()
        known = {token.content: token for token in backend.get_added_tokens_decoder().values()}
        missing = [
            AddedToken(content, special=True, normalized=False)
            for content in dict.fromkeys(
                [*self.special_tokens.values(), *self.extra_special_tokens]
            )
            if content not in known
        ]
        if missing:
            backend.add_tokens(missing)
        if self.add_bos_token is not None or self.add_eos_token is not None:
            self._set_post_processor(backend)

    def _set_post_processor(self, backend: Tokenizer) -> None:
        bos = self.special_tokens.get("bos_token") if self.add_bos_token else None
        eos = self.special_tokens.get("eos_token") if self.add_eos_token else None
        parts = [f"{bos}:0" if bos else "", "$A:0", f"{eos}:0" if eos else ""]
        backend.post_processor = processors.TemplateProcessing(
            single=[part for part in parts if part],
            special_tokens=[(token, backend.token_to_id(token)) for token in (bos, eos) if token],
        )


def load_backend(folder: Path) -> Tokenizer:
    """Reads `tokenizer.json`; FailedPreconditionError when it is missing or broken."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise FailedPreconditionError(
            f"{folder} has no tokenizer.json. Save the model's tokenizer there with transformers: "
            "AutoTokenizer.from_pretrained(model).save_pretrained(folder).",
            reason="TOKENIZER_MISSING",
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
