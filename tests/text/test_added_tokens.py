"""Added tokens of byte-level vocabularies, whose letters are also names of bytes."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from anydraft.text import StreamingDetokenizer, TextTokenizer
from tests import tokenizers_zoo
from tests.text.strategies import texts

BYTE_LEVEL = ["gpt2", "llama3", "qwen", "lowercase"]
# ñ and ú are names of the bytes 0xF1 and 0xFA, đ of a control character; ▁ and 你 of none.
CONTENTS = [
    "ñandú",
    "đem",
    "čaj",
    "õõ",
    "Ġx",
    "naïf▁",
    "你é",
    "<｜begin▁of▁sentence｜>",
    "  ",
    "Bác",
]


def with_added(name: str, contents: list[str], **flags: bool) -> Tokenizer:
    backend = Tokenizer.from_str(tokenizers_zoo.build(name).to_str())
    backend.add_tokens([AddedToken(content, **flags) for content in contents])
    return backend


class UpgradedLibrary:
    """A backend as it decodes once added tokens are left alone by the byte-level decoder."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend

    def __getattr__(self, name):
        return getattr(self._backend, name)

    def decode(self, ids, skip_special_tokens=True):
        added = self._backend.get_added_tokens_decoder()
        text, run = "", []
        for token_id in [*ids, None]:
            if token_id is None or token_id in added:
                text += self._backend.decode(run, skip_special_tokens=False)
                run = []
            else:
                run.append(token_id)
            if token_id is not None and token_id in added:
                token = added[token_id]
                text += "" if skip_special_tokens and token.special else token.content
        return text


@pytest.mark.parametrize("library", [lambda backend: backend, UpgradedLibrary])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_added_tokens_stand_for_what_is_written(name, normalized, special, library):
    backend = with_added(name, CONTENTS, normalized=normalized, special=special)
    tokenizer = TextTokenizer(library(backend))
    for content in CONTENTS:
        token_id = backend.token_to_id(content)
        assert tokenizer.encode(content) == [token_id]
        assert tokenizer.token_bytes(token_id).decode() == content
        assert tokenizer.is_special(token_id) is special


def test_they_are_streamed_as_they_are_written():
    tokenizer = TextTokenizer(with_added("gpt2", ["ñandú"]))
    ids = tokenizer.encode("un ñandú é 你")
    assert ids.count(tokenizer.backend.token_to_id("ñandú")) == 1
    for keep_special in (False, True):
        detokenizer = StreamingDetokenizer(tokenizer, keep_special=keep_special)
        assert detokenizer.push(ids) + detokenizer.flush() == "un ñandú é 你"


@given(text=texts, content=st.one_of(st.sampled_from(CONTENTS), texts), special=st.booleans())
def test_any_added_token_leaves_texts_as_they_are(text, content, special):
    assume(content and tokenizers_zoo.build("gpt2").token_to_id(content) is None)
    backend = with_added("gpt2", [content], normalized=False, special=special)
    tokenizer = TextTokenizer(backend)
    whole = text + content + text
    assert tokenizer.text_bytes(tokenizer.encode(whole)).decode() == whole


def test_a_normalizer_that_writes_bytes_changes_no_added_token():
    backend = with_added("gpt2", [])
    backend.normalizer = tokenizers_zoo.normalizers.ByteLevel()
    backend.pre_tokenizer = None
    backend.add_tokens([AddedToken("ñandú it", normalized=True), AddedToken("đem")])
    tokenizer = TextTokenizer(backend)
    for content in ["ñandú it", "đem"]:
        assert tokenizer.token_bytes(backend.token_to_id(content)).decode() == content
    assert tokenizer.text_bytes(tokenizer.encode("x ñandú it y")).decode() == "x ñandú it y"


def test_what_the_vocabulary_makes_of_bytes_keeps_its_bytes():
    backend = with_added("gpt2", ["Ġthe", "é"])
    tokenizer = TextTokenizer(backend)
    assert tokenizer.token_bytes(backend.token_to_id("Ġthe")) == b" the"
    assert tokenizer.token_bytes(backend.token_to_id("é")) == b"\xe9"
    assert tokenizer.text_bytes(tokenizer.encode("of the 選")).decode() == "of the 選"


def test_an_added_token_with_the_name_of_a_byte_is_not_that_byte():
    # As in DeepSeek-Coder, whose vocabulary lacks the bytes that valid UTF-8 never holds.
    state = tokenizers_zoo.json.loads(tokenizers_zoo.build("gpt2").to_str())
    vocabulary = state["model"]["vocab"]
    vocabulary["unused"] = vocabulary.pop("õ")
    backend = Tokenizer.from_str(tokenizers_zoo.json.dumps(state))
    backend.add_tokens(["õ"])
    tokenizer = TextTokenizer(backend)
    assert tokenizer.byte_id(0xF5) is None
    assert tokenizer.token_bytes(backend.token_to_id("õ")).decode() == "õ"
