"""The load check: a decoder that does not belong to its vocabulary is refused."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from anydraft.errors import FailedPreconditionError, UnsupportedModelError
from anydraft.text import TextTokenizer
from anydraft.text.roundtrip import SAMPLES
from tests import tokenizers_zoo
from tests.text import cases

FAMILY = {
    "byte level": ["gpt2", "llama3", "qwen", "lowercase"],
    "byte fallback": [
        "metaspace_always",
        "metaspace_first",
        "metaspace_never",
        "llama2_legacy",
        "gemma",
    ],
    "metaspace": ["unigram"],
    "wordpiece": ["wordpiece"],
}
DECODERS = {
    "none": None,
    "fuse": decoders.Fuse(),
    "bpe": decoders.BPEDecoder(),
    "byte level": decoders.ByteLevel(),
    "metaspace": decoders.Metaspace(),
    "wordpiece": decoders.WordPiece(),
    "byte fallback": tokenizers_zoo.build("metaspace_never").decoder,
}
# Byte fallback undoes what Metaspace does, and more.
FITTING = {("metaspace", "byte fallback")}
WRONG = [
    (name, decoder)
    for family, names in FAMILY.items()
    for name in names
    for decoder in DECODERS
    if decoder != family and (family, decoder) not in FITTING
]


@pytest.mark.parametrize(("name", "decoder"), WRONG)
def test_a_decoder_of_another_vocabulary_is_refused(name, decoder):
    backend = Tokenizer.from_str(tokenizers_zoo.build(name).to_str())
    backend.decoder = DECODERS[decoder]
    with pytest.raises(FailedPreconditionError, match=r"model's own tokenizer\.json") as caught:
        TextTokenizer(backend)
    assert caught.value.reason == "TOKENIZER_DECODER_MISMATCH"


def test_a_decoder_that_looks_across_tokens_is_refused():
    backend = tokenizers_zoo.gpt2()
    backend.decoder = decoders.CTC()
    with pytest.raises(UnsupportedModelError, match="Use another model"):
        TextTokenizer(backend)


@pytest.mark.parametrize("tokenizer", cases.ALL, indirect=True)
def test_what_normalizes_or_loses_text_is_accepted(tokenizer):
    assert tokenizer.vocab_size


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.BertNormalizer(),
        normalizers.NFKD(),
        normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
        normalizers.Sequence([normalizers.Strip(), normalizers.Lowercase(), normalizers.Nmt()]),
        normalizers.Replace(tokenizers_zoo.Regex("[0-9]"), "#"),
    ],
)
@pytest.mark.parametrize("name", ["gpt2", "metaspace_first", "unigram"])
def test_normalizers_are_the_tokenizers_own_affair(name, normalizer):
    backend = Tokenizer.from_str(tokenizers_zoo.build(name).to_str())
    backend.normalizer = normalizer
    assert TextTokenizer(backend).encode("hello")


def test_a_vocabulary_that_knows_none_of_the_samples_is_accepted():
    backend = Tokenizer(models.WordLevel({"xyzzy": 0, "?": 1}, unk_token="?"))
    assert TextTokenizer(backend).encode("xyzzy") == [0]
    assert TextTokenizer(Tokenizer(models.BPE())).encode("xyzzy") == []


def test_added_tokens_within_the_samples_do_not_matter():
    words = [word for sample in SAMPLES for word in sample.split()]
    for name in ["gpt2", "metaspace_always", "unigram", "wordpiece"]:
        backend = Tokenizer.from_str(tokenizers_zoo.build(name).to_str())
        backend.add_tokens([AddedToken(word, normalized=False) for word in words])
        assert TextTokenizer(backend).encode("hello")
