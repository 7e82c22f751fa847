"""The tokenizer of a GGUF file, and the ends of a turn, as the file describes them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from anydraft.errors import UnsupportedModelError
from anydraft.models.gguf_tokenizer import repair_tokenizer
from tests import tokenizers_zoo
from tests.models import tiny
from tests.models.test_gguf import loaded

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)


@pytest.mark.parametrize("named", ["template", "eom", "spelling"])
def test_ends_of_a_turn(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = tokenizers_zoo.build("gpt2").get_vocab()

    def say(writer: Any) -> None:
        if named == "template":
            writer.add_chat_template(TEMPLATE)
        if named == "eom":
            writer.add_eom_token_id(vocabulary["<s>"])

    # The file names </s> as eos, and <|im_end|> as nothing.
    monkeypatch.setattr("gguf.GGUFWriter.add_eot_token_id", lambda *_: None)
    path = tiny.save_gguf(tmp_path / "tiny.gguf", say=say)
    if named == "template":
        monkeypatch.setattr("anydraft.models.gguf_tokenizer._END_SPELLINGS", set())
    ends = loaded(path)[0].generation_config.eos_token_id
    expected = {
        "template": ["</s>", "<|im_end|>"],
        "eom": ["</s>", "<s>", "<|im_end|>"],
        "spelling": ["</s>", "<|im_end|>"],
    }
    assert ends == [vocabulary[token] for token in expected[named]]


@pytest.mark.parametrize(
    ("bos", "eos", "before", "after"),
    [
        (True, None, ["<s>"], []),
        (True, True, ["<s>"], ["</s>"]),
        (False, None, [], []),
        (None, None, [], []),
    ],
)
def test_tokens_around_a_text(
    bos: bool | None, eos: bool | None, before: list[str], after: list[str], tmp_path: Path
) -> None:
    vocabulary = tokenizers_zoo.build("gpt2").get_vocab()

    def say(writer: Any) -> None:
        writer.add_bos_token_id(vocabulary["<s>"])
        if eos is not None:
            writer.add_add_eos_token(eos)

    path = tiny.save_gguf(tmp_path / "tiny.gguf", say=say, add_bos=bos)
    _, tokenizer = loaded(path)
    backend = tokenizer.backend_tokenizer
    plain = backend.encode("a b", add_special_tokens=False).tokens
    assert backend.encode("a b").tokens == [*before, *plain, *after]


def test_llama3_begins_with_bos_and_takes_whole_tokens(tmp_path: Path) -> None:
    vocabulary = tokenizers_zoo.build("gpt2").get_vocab()
    path = tiny.save_gguf(
        tmp_path / "tiny.gguf",
        "llama-bpe",
        say=lambda w: w.add_bos_token_id(vocabulary["<s>"]),
        add_bos=None,
    )
    _, tokenizer = loaded(path)
    assert tokenizer.backend_tokenizer.encode("a").tokens[0] == "<s>"
    assert tokenizer.backend_tokenizer.model.ignore_merges


def test_an_unknown_cut_is_refused(tmp_path: Path) -> None:
    path = tiny.save_gguf(tmp_path / "tiny.gguf", "of-the-future")
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre = 'of-the-future'"):
        loaded(path)


def test_special_tokens_outside_the_byte_alphabet(tmp_path: Path) -> None:
    wide = {"<|im_start|>": "<\uff5cUser\uff5c>", "[TOOL]": "ñandú"}
    path = tiny.save_gguf(tmp_path / "tiny.gguf", spell=wide)
    vocabulary = tokenizers_zoo.build("gpt2").get_vocab()
    _, tokenizer = loaded(path)
    for old, new in wide.items():
        encoded = tokenizer.backend_tokenizer.encode(f"a{new}b", add_special_tokens=False)
        assert encoded.ids[1] == vocabulary[old]
        assert encoded.tokens[1] == new
    held = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    assert len(held) == len(vocabulary)


def test_a_space_of_its_own() -> None:
    backend = tokenizers_zoo.build("metaspace_first")
    assert backend.encode("ab c").tokens[0].startswith("▁")
    fields = {
        "tokenizer.ggml.model": SimpleNamespace(contents=lambda: "llama"),
        "tokenizer.ggml.add_space_prefix": SimpleNamespace(contents=lambda: False),
    }
    repair_tokenizer(SimpleNamespace(backend_tokenizer=backend), fields, "m.gguf")
    ids = backend.encode("ab c", add_special_tokens=False).ids
    assert not backend.id_to_token(ids[0]).startswith("▁")
    assert backend.decode(ids) == "ab c"
    assert backend.decode(backend.encode(" ab", add_special_tokens=False).ids) == " ab"
