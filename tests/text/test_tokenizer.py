import json
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from anydraft.errors import FailedPreconditionError, InvalidRequestError, UnsupportedModelError
from anydraft.text import TextTokenizer
from anydraft.v1 import prompt_pb2
from tests import tokenizers_zoo
from tests.text import cases
from tests.text.strategies import texts


def added_text(tokenizer: TextTokenizer, ids: list[int]) -> str:
    """What the library's own decoding gains by `ids` in running text."""
    anchor, decode = tokenizer.encode("a")[-1], tokenizer.backend.decode
    return decode([anchor, *ids], skip_special_tokens=False).removeprefix(decode([anchor]))


@pytest.mark.parametrize("tokenizer", cases.TINY, indirect=True)
def test_token_bytes_of_every_id_are_what_decoding_adds(tokenizer):
    for token_id in range(tokenizer.vocab_size):
        data = tokenizer.token_bytes(token_id)
        if b"\xef\xbf\xbd" in data.decode(errors="replace").encode():
            continue  # a part of a character, seen by itself
        assert data.decode() == added_text(tokenizer, [token_id])


@pytest.mark.parametrize("tokenizer", cases.ALL, indirect=True)
@given(text=texts)
def test_joined_bytes_are_what_decoding_adds(tokenizer, text):
    ids = tokenizer.encode("a" + text)
    data = tokenizer.text_bytes(ids)
    assert data.decode(errors="replace") == added_text(tokenizer, ids)


@pytest.mark.parametrize("tokenizer", cases.EXACT, indirect=True)
@given(text=texts.filter(lambda text: not set("▁<[") & set(text)))
def test_bytes_of_an_exact_tokenizer_are_the_text(tokenizer, text):
    # Without SentencePiece's own mark, and what some put a space behind: added tokens.
    data = tokenizer.text_bytes(tokenizer.encode("a" + text))
    assert data.decode().removeprefix(" ") == "a" + text


@pytest.mark.parametrize("tokenizer", cases.ALL, indirect=True)
@given(text=texts, special=st.booleans())
def test_ids_are_those_of_the_librarys_own_encode(tokenizer, text, special):
    theirs = tokenizer.backend.encode(text, add_special_tokens=special)
    assert tokenizer.encode(text, add_special_tokens=special) == theirs.ids


@pytest.mark.parametrize("name", ["gpt2", "metaspace_first", "unigram", "wordpiece"])
def test_other_threads_go_on_while_a_long_text_is_encoded(name):
    tokenizer = cases.load(name)
    longest = sys.getswitchinterval()
    turns, done = 0, threading.Event()

    def encode():
        tokenizer.encode("é" * 500_000)
        done.set()

    try:
        sys.setswitchinterval(60)  # nobody is made to let go of the lock
        thread = threading.Thread(target=encode)
        thread.start()
        while not done.is_set():
            turns += 1
            time.sleep(0.0005)
    finally:
        sys.setswitchinterval(longest)
        thread.join()
    assert turns > 5


@pytest.mark.parametrize("tokenizer", cases.ALL, indirect=True)
def test_ids_that_pad_the_embedding_have_no_text(tokenizer):
    beyond = tokenizer.vocab_size + 7
    assert tokenizer.token_bytes(beyond) == b""
    assert tokenizer.token_bytes(-1) == b""
    assert not tokenizer.is_special(beyond)
    assert not tokenizer.is_byte_token(beyond)


@pytest.mark.parametrize("tokenizer", cases.TINY, indirect=True)
def test_special_tokens_stand_for_their_literal(tokenizer):
    for literal in tokenizers_zoo.SPECIAL:
        token_id = tokenizer.backend.token_to_id(literal)
        assert tokenizer.is_special(token_id)
        assert tokenizer.token_bytes(token_id).decode().strip() == literal
    for literal in tokenizers_zoo.ADDED:
        assert not tokenizer.is_special(tokenizer.backend.token_to_id(literal))


@pytest.mark.parametrize("tokenizer", cases.EXACT, indirect=True)
def test_every_byte_has_a_token(tokenizer):
    if not tokenizer.byte_fallback:
        unused = {0xC0, 0xC1, *range(0xF5, 0x100)}  # in no valid UTF-8, so real ones may lack them
        single = [byte for byte in range(256) if byte not in unused]
    else:
        single = list(range(256))
    for byte in single:
        token_id = tokenizer.byte_id(byte)
        assert token_id is not None
        assert tokenizer.token_bytes(token_id) == bytes([byte])


@pytest.mark.parametrize("name", ["unigram", "wordpiece"])
def test_unknown_id(name):
    tokenizer = cases.load(name)
    assert tokenizer.unknown_id in tokenizer.encode("ꙮ")


def test_without_a_decoder_tokens_are_joined_by_spaces():
    words = {word: index for index, word in enumerate(["hello", "world", "?"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = TextTokenizer(backend)
    ids = tokenizer.encode("hello world")
    assert tokenizer.text_bytes(ids).decode() == added_text(tokenizer, ids)


def test_a_decoder_step_that_is_not_known_is_probed():
    backend = tokenizers_zoo.unigram()
    replace = decoders.Replace(tokenizers_zoo.Regex("▁"), " ")
    backend.decoder = decoders.Sequence([replace, decoders.Fuse()])
    tokenizer = TextTokenizer(backend)
    ids = tokenizer.encode("the hello world")
    assert tokenizer.text_bytes(ids) == b" the hello world"


def test_lone_surrogates_are_refused():
    with pytest.raises(InvalidRequestError, match="surrogate"):
        cases.load("gpt2").encode("a\ud800")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizers_zoo.build("llama3").save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write_config(folder: Path, **values: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def test_missing_tokenizer_names_the_fix(tmp_path):
    with pytest.raises(FailedPreconditionError, match="save_pretrained"):
        TextTokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "Future"}}'])
def test_broken_tokenizer_is_refused(folder, content):
    (folder / "tokenizer.json").write_text(content)
    with pytest.raises(FailedPreconditionError, match="Download it again"):
        TextTokenizer.from_folder(folder)


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_broken_config_is_refused(folder, content):
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(FailedPreconditionError, match=r"tokenizer_config\.json"):
        TextTokenizer.from_folder(folder)


def test_padding_and_truncation_of_the_file_are_ignored(folder):
    backend = Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    backend.save(str(folder / "tokenizer.json"))
    ids = TextTokenizer.from_folder(folder).encode("hello world, hello there")
    assert (
        ids
        == tokenizers_zoo.build("llama3")
        .encode("hello world, hello there", add_special_tokens=False)
        .ids
    )


def test_named_tokens_become_special(folder):
    write_config(folder, eos_token={"content": "<think>"}, pad_token="<pad>", bos_token="<s>")
    tokenizer = TextTokenizer.from_folder(folder)
    assert tokenizer.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "<think>",
        "pad_token": "<pad>",
    }
    assert len(tokenizer.encode("hello<pad>")) == len(tokenizer.encode("hello")) + 1


def test_the_jinja_file_wins_over_the_config(folder):
    write_config(folder, chat_template=[{"name": "default", "template": "one"}])
    assert TextTokenizer.from_folder(folder).chat_template == "one"
    (folder / "chat_template.jinja").write_text("two")
    assert TextTokenizer.from_folder(folder).chat_template == "two"


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"add_bos_token": False, "add_eos_token": True},
        {"additional_special_tokens": ["<|new|>"]},
        {"added_tokens_decoder": {"508": {"content": "<|new|>", "special": False}}},
    ],
)
def test_folder_encodes_as_transformers_does(folder, extra):
    from transformers import AutoTokenizer

    write_config(
        folder,
        tokenizer_class="PreTrainedTokenizerFast",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        **extra,
    )
    ours, theirs = TextTokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    for text in ["hello <|new|> world<pad></s>", "", "你好 🙂"]:
        for special in [False, True]:
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids
    assert ours.special_tokens == theirs.special_tokens_map


def test_vocabulary_of_another_model_is_refused():
    tokenizer = TextTokenizer(tokenizers_zoo.gpt2())
    base = tokenizer.backend.get_vocab_size(with_added_tokens=False)
    tokenizer.check_vocabulary(tokenizer.vocab_size + 64)
    assert tokenizer.id_limit == tokenizer.vocab_size
    with pytest.raises(FailedPreconditionError, match=r"model's own tokenizer\.json"):
        tokenizer.check_vocabulary(base - 1)


def test_added_tokens_beyond_the_model_are_kept_away_from_it():
    tokenizer = TextTokenizer(tokenizers_zoo.gpt2())
    tokenizer.check_vocabulary(tokenizer.backend.get_vocab_size(with_added_tokens=False))
    assert tokenizer.encode_prompt(prompt_pb2.Prompt(text="hello"))
    with pytest.raises(InvalidRequestError, match="<think>"):
        tokenizer.encode_prompt(prompt_pb2.Prompt(text="hello <think>"))


def test_prompts():
    tokenizer = cases.load("llama3")
    start = tokenizer.backend.token_to_id("<s>")
    assert tokenizer.encode_prompt(prompt_pb2.Prompt(text="hello")) == [
        start,
        *tokenizer.encode("hello"),
    ]
    message = prompt_pb2.ChatMessage(role="user", content="hello")
    chat = prompt_pb2.Prompt(messages=prompt_pb2.ChatMessages(messages=[message]))
    plain = tokenizer.encode("User: hello\n\nAssistant:")
    assert tokenizer.encode_prompt(chat) == [start, *plain]
    templated = TextTokenizer(
        tokenizers_zoo.llama3(),
        chat_template="{{ bos_token }}{{ messages[0].content }}",
        special_tokens={"bos_token": "<s>"},
    )
    assert templated.encode_prompt(chat) == [start, *tokenizer.encode("hello")]


def test_empty_prompts_are_refused():
    with pytest.raises(InvalidRequestError, match="empty"):
        cases.load("gpt2").encode_prompt(prompt_pb2.Prompt(text=""))


def test_tokenizers_that_run_in_python_only_are_refused():
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.json"):
        TextTokenizer.from_transformers(object())


@pytest.mark.parametrize("name", cases.WITH_WEIGHTS)
@pytest.mark.real
def test_real_folder_encodes_as_transformers_does(name, real_folder):
    from transformers import AutoTokenizer

    folder = real_folder(name)
    ours, theirs = TextTokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    for text in [*tokenizers_zoo.CORPUS[:8], "<|im_start|>user\nhi<|im_end|>", "<bos>x", ""]:
        for special in [False, True]:
            ids = theirs.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids
    assert ours.special_tokens == theirs.special_tokens_map
