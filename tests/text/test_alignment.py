import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anydraft.text import DraftAligner, StreamingDetokenizer
from anydraft.text.alignment import ALIGNED_BYTES, MAX_CANDIDATES, Branch
from tests import tokenizers_zoo
from tests.text import cases
from tests.text.strategies import texts, words

PROSE = "The verifier checks every draft, and commits what the target would say 12 times. "
CODE = "def add(left, right):\n    total = left + right\n    return total\n\n\nprint(add(1, 22))\n"


def committed(tokenizer, ids):
    """The ids, and the bytes at their end that are not announced."""
    detokenizer = StreamingDetokenizer(tokenizer, keep_special=True)
    detokenizer.push(ids)
    return list(ids), detokenizer.pending


@dataclass(frozen=True)
class Found:
    token_id: int
    end: int


def align(tokenizer, ids, pending, draft):
    """A draft of one piece: its candidates, and where they end in it."""
    data = draft if isinstance(draft, bytes) else draft.encode()
    found, end = [], len(pending)
    candidates = DraftAligner(tokenizer).align(ids, pending, [Branch(data, -1, -1.0, False)])
    for index, candidate in enumerate(candidates):
        assert candidate.parent == index - 1
        assert candidate.reach == math.exp(-1.0)
        end += len(tokenizer.token_bytes(candidate.token_id))
        found.append(Found(candidate.token_id, end))
    return found


def says(tokenizer, candidates, text):
    """Whether candidates are all of the text, as far as a call goes."""
    data = candidate_bytes(tokenizer, candidates)
    is_bounded = len(candidates) == MAX_CANDIDATES or len(text) > ALIGNED_BYTES / 2
    return data == text or (is_bounded and text.startswith(data) and len(data) >= 64)


def candidate_bytes(tokenizer, candidates):
    return tokenizer.text_bytes(c.token_id for c in candidates)


@pytest.mark.parametrize("tokenizer", cases.ALL, indirect=True)
@given(data=st.data(), draft=texts, cut_character=st.booleans())
def test_candidates_say_what_the_draft_says(tokenizer, data, draft, cut_character):
    ids = data.draw(
        st.one_of(
            texts.map(tokenizer.encode), st.lists(st.integers(0, tokenizer.vocab_size), max_size=40)
        )
    )
    ids, pending = committed(tokenizer, ids)
    if cut_character and pending:
        draft = (pending + b"\x80" * 3).decode(errors="ignore")[:1] + draft
    candidates = align(tokenizer, ids, pending, draft)
    text = draft.encode()
    ends = [len(pending), *(c.end for c in candidates)]
    for candidate, start in zip(candidates, ends, strict=False):
        assert text[start : candidate.end] == tokenizer.token_bytes(candidate.token_id)
        assert candidate.end > start
        assert candidate.token_id != tokenizer.unknown_id


@pytest.mark.parametrize("tokenizer", cases.EXACT, indirect=True)
@given(text=texts, draft=texts.filter(lambda text: not set("▁<[") & set(text)))
def test_an_exact_tokenizer_writes_the_whole_draft(tokenizer, text, draft):
    # Without SentencePiece's own mark, and what some put a space behind: added tokens.
    ids, pending = committed(tokenizer, tokenizer.encode(text))
    if pending:
        return  # ends with a character that the draft would have to repeat
    candidates = align(tokenizer, ids, b"", draft)
    assert says(tokenizer, candidates, draft.encode())


@pytest.mark.parametrize("tokenizer", cases.EXACT, indirect=True)
@given(text=texts.filter(lambda text: not set("▁<[") & set(text)), data=st.data())
def test_a_draft_may_begin_inside_a_character(tokenizer, text, data):
    whole = tokenizer.encode("a" + text + "🙂 ꙮ end")
    cut = data.draw(st.integers(1, len(whole)))
    ids, pending = committed(tokenizer, whole[:cut])
    said = len(tokenizer.text_bytes(ids)) - len(pending)
    draft = tokenizer.text_bytes(whole)[said:]
    candidates = align(tokenizer, ids, pending, draft)
    assert says(tokenizer, candidates, draft[len(pending) :])


@pytest.mark.parametrize("tokenizer", cases.ALL, indirect=True)
@given(text=words, data=st.data())
def test_words_continue_as_they_would_have_been_encoded(tokenizer, text, data):
    spaces = [i for i, char in enumerate(text) if char == " "]
    if not spaces:
        return
    cut = data.draw(st.sampled_from(spaces))
    whole, head = tokenizer.encode(text), tokenizer.encode(text[:cut])
    if whole[: len(head)] != head or tokenizer.unknown_id in whole:
        return
    candidates = align(tokenizer, head, b"", text[cut:])
    found = [c.token_id for c in candidates]
    assert found == whole[len(head) : len(head) + len(found)]
    assert len(found) >= min(len(whole) - len(head), 40)


@pytest.mark.parametrize("tokenizer", cases.EXACT, indirect=True)
@pytest.mark.parametrize("text", [PROSE * 3, CODE * 3, "".join(tokenizers_zoo.CORPUS[:8])])
def test_running_text_continues_as_it_would_have_been_encoded(tokenizer, text):
    whole = tokenizer.encode(text)
    data = tokenizer.text_bytes(whole)
    agreeing = 0
    for cut in range(1, len(whole)):
        ids, pending = committed(tokenizer, whole[:cut])
        said = len(tokenizer.text_bytes(ids)) - len(pending)
        candidates = align(tokenizer, ids, pending, data[said : said + 90].decode(errors="ignore"))
        agreeing += [c.token_id for c in candidates[:3]] == whole[cut : cut + len(candidates[:3])]
    assert agreeing >= 0.97 * (len(whole) - 1)


@pytest.mark.parametrize("tokenizer", cases.EXACT, indirect=True)
@pytest.mark.parametrize("unit", ["a", "ab", " the", "\n", "🙂", "0", "- "])
def test_repetitive_text_continues(tokenizer, unit):
    whole = tokenizer.encode("x" + unit * 90)
    for size in [1, 2, 20, 60]:
        ids, pending = committed(tokenizer, whole[:size])
        draft = pending.decode(errors="ignore") + unit * 9
        if pending:
            continue
        candidates = align(tokenizer, ids, b"", draft)
        assert candidate_bytes(tokenizer, candidates) == draft.encode()


@pytest.mark.parametrize("tokenizer", cases.EXACT, indirect=True)
@pytest.mark.parametrize("draft", ["hello", " hello", "\nhello", "1", "。", "\u0301"])
def test_behind_a_special_token_or_nothing(tokenizer, draft):
    special = [i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)][:2]
    for ids in [[], special[:1], special, [*tokenizer.encode("hello"), *special[:1]]]:
        candidates = align(tokenizer, ids, b"", draft)
        assert candidate_bytes(tokenizer, candidates) == draft.encode()


@pytest.mark.parametrize("tokenizer", cases.EXACT, indirect=True)
def test_a_draft_that_would_merge_with_the_last_token(tokenizer):
    for text, draft in [("hello wor", "ld hello"), ("1", "234"), ("x\n", "\n\n  y"), ("a ", " b")]:
        candidates = align(tokenizer, tokenizer.encode(text), b"", draft)
        assert candidate_bytes(tokenizer, candidates) == draft.encode()


@pytest.mark.parametrize("tokenizer", cases.TINY, indirect=True)
def test_special_and_added_tokens_in_a_draft_are_themselves(tokenizer):
    for literal in ["<|im_end|>", "<think>"]:
        ids = tokenizer.encode("the hello")
        found = [c.token_id for c in align(tokenizer, ids, b"", literal)]
        token_id = tokenizer.backend.token_to_id(literal)
        assert found == ([token_id] if tokenizer.token_bytes(token_id) == literal.encode() else [])


@pytest.mark.parametrize("draft", [b"", b"\xed\xa0\x80", b"\xffa", b"\xf0\x9f"])
def test_drafts_that_say_nothing(draft):
    tokenizer = cases.load("gpt2")
    assert align(tokenizer, tokenizer.encode("hello"), b"", draft) == []


def test_a_draft_that_contradicts_the_unfinished_character():
    tokenizer = cases.load("gpt2")
    ids = [tokenizer.byte_id(byte) for byte in "🙂".encode()[:2]]
    assert align(tokenizer, ids, "🙂".encode()[:2], "x") == []
    rest = align(tokenizer, ids, "🙂".encode()[:2], "🙂 x")
    assert candidate_bytes(tokenizer, rest) == "🙂 x".encode()[2:]
    assert rest[-1].end == len("🙂 x".encode())


def test_candidates_stop_at_what_the_tokenizer_cannot_write():
    tokenizer = cases.load("unigram")
    candidates = align(tokenizer, tokenizer.encode("the"), b"", " hello ꙮ world")
    assert candidate_bytes(tokenizer, candidates).rstrip() == b" hello"


def test_candidates_stop_where_the_tokenizer_changes_the_text():
    tokenizer = cases.load("lowercase")
    candidates = align(tokenizer, tokenizer.encode("the"), b"", " hello World")
    assert candidate_bytes(tokenizer, candidates).rstrip() == b" hello"


def test_ids_beyond_the_model_are_no_candidates():
    from anydraft.text import TextTokenizer

    tokenizer = TextTokenizer(tokenizers_zoo.gpt2())
    tokenizer.check_vocabulary(tokenizer.backend.get_vocab_size(with_added_tokens=False))
    candidates = align(tokenizer, tokenizer.encode("the"), b"", " hello<think> x")
    assert candidate_bytes(tokenizer, candidates) == b" hello"


@pytest.mark.parametrize("tokenizer", cases.REAL, indirect=True)
def test_little_of_a_long_session_is_encoded_again(tokenizer, monkeypatch):
    ids = tokenizer.encode(PROSE * 400)
    draft = " the target checks every draft in one forward pass"
    encoded, encode = [], tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: encoded.append(len(text)) or encode(text))
    assert align(tokenizer, ids, b"", draft)
    assert 0 < sum(encoded) < 1000


@pytest.mark.parametrize("tokenizer", cases.TINY, indirect=True)
@pytest.mark.parametrize("unit", ["a", " ", "\u0301", "a\u0301", "🙂", "▁", "0", "A b?"])
def test_little_of_a_long_draft_is_encoded_whatever_it_says(tokenizer, unit, monkeypatch):
    encoded, encode = [], tokenizer.encode
    aligner = DraftAligner(tokenizer)
    ids = encode(PROSE * 10)
    monkeypatch.setattr(
        tokenizer, "encode", lambda text: encoded.append(len(text.encode())) or encode(text)
    )
    pieces = [Branch(unit.encode() * 1000, index - 1, -1.0, False) for index in range(100)]
    leaves = [Branch(unit.encode() + b"%d" % index, 99, -2.0, False) for index in range(100)]
    candidates = aligner.align(ids, b"", pieces + leaves)
    assert max(encoded) <= ALIGNED_BYTES + 600
    # A unit may be tried behind a window and several anchors.
    assert sum(encoded) <= 10 * (ALIGNED_BYTES + 600)
    assert len(candidates) <= MAX_CANDIDATES


def paths_of(tokenizer, candidates):
    """The text of each candidate's path, and that each is offered once, behind its parent."""
    texts = []
    for index, candidate in enumerate(candidates):
        assert -1 <= candidate.parent < index
        before, most = (
            (b"", 1.0)
            if candidate.parent < 0
            else (texts[candidate.parent], candidates[candidate.parent].reach)
        )
        assert 0 <= candidate.reach <= most
        texts.append(before + tokenizer.token_bytes(candidate.token_id))
    assert len({(c.parent, c.token_id) for c in candidates}) == len(candidates)
    reaches = [c.reach for c in candidates]
    assert reaches == sorted(reaches, reverse=True)
    return texts


def trees(pieces):
    """Branches in the order of their likelihood, some of two drafters."""
    return st.lists(
        st.tuples(pieces, st.integers(0, 9), st.floats(-3, 0), st.integers(0, 9)), max_size=24
    ).map(_tree)


def _tree(drawn):
    branches = []
    for text, back, logprob, kind in drawn:
        parent = len(branches) - 1 - back if back < len(branches) else -1
        while parent >= 0 and branches[parent].ends:
            parent = branches[parent].parent
        before = branches[parent].logprob if parent >= 0 else 0.0
        drafter = branches[parent].drafter if parent >= 0 else kind % 2
        ends = kind == 9
        if text or ends:
            text = b"" if ends else text
            branches.append(Branch(text, parent, before + logprob, ends, drafter))
    return branches


def path_texts(branches):
    texts = []
    for branch in branches:
        texts.append((texts[branch.parent] if branch.parent >= 0 else b"") + branch.text)
    return texts


running = st.sampled_from([b" the", b" target", b" tar", b"get", b"s", b".", b" ", b"\n", b" is"])
anything = st.one_of(running, texts.map(str.encode), st.binary(max_size=3))


@pytest.mark.parametrize("tokenizer", cases.ALL, indirect=True)
@given(ids=texts, branches=trees(anything), cut=st.integers(0, 5))
def test_each_path_of_candidates_says_what_a_path_of_branches_says(tokenizer, ids, branches, cut):
    end_id = tokenizer.vocab_size + 7  # told apart from all others
    ids = tokenizer.encode("x" + ids)
    ids, pending = committed(tokenizer, ids[: max(len(ids) - cut, 1)])
    candidates = DraftAligner(tokenizer).align(ids, pending, branches, end_id)
    said = paths_of(tokenizer, candidates)
    branch_texts = path_texts(branches)
    endings = {text for text, branch in zip(branch_texts, branches, strict=True) if branch.ends}
    for text, candidate in zip(said, candidates, strict=True):
        if candidate.token_id == end_id:
            assert pending + text in endings
        else:
            assert any(whole.startswith(pending + text) for whole in branch_texts)


@pytest.mark.parametrize("tokenizer", cases.EXACT, indirect=True)
@given(branches=trees(running))
def test_all_paths_are_offered_and_as_likely_as_their_branches(tokenizer, branches):
    """Of an exact tokenizer, as far as a call goes."""
    ids = tokenizer.encode("The target")
    candidates = DraftAligner(tokenizer).align(ids, b"", branches)
    said = dict(zip(paths_of(tokenizer, candidates), candidates, strict=True))
    texts = path_texts(branches)
    if len(candidates) == MAX_CANDIDATES:
        return
    followed = {branch.parent for branch in branches if not branch.ends}
    for index, branch in enumerate(branches):
        if index not in followed and not branch.ends:
            assert texts[index] in said
            assert said[texts[index]].reach >= math.exp(branch.logprob) * (1 - 1e-9)


def test_a_longer_path_wins_over_what_is_cut_short():
    tokenizer = cases.load("gpt2")
    ids = tokenizer.encode("The")
    branches = [
        Branch(b" tar", -1, math.log(0.9), False),
        Branch(b"get", 0, math.log(0.6), False),
        Branch(b"dy", 0, math.log(0.2), False),
    ]
    candidates = DraftAligner(tokenizer).align(ids, b"", branches)
    texts = paths_of(tokenizer, candidates)
    whole, other = (tokenizer.encode("The" + text)[len(ids) :] for text in (" target", " tardy"))
    assert set(texts) == {
        tokenizer.text_bytes(path[:n]) for path in (whole, other) for n in range(1, len(path) + 1)
    }
    first = next(c for c in candidates if c.parent < 0 and c.token_id == whole[0])
    assert first.reach == pytest.approx(0.6 if whole[0] != other[0] else 0.9)


def test_likelihoods_of_what_excludes_itself_are_added():
    """Digits are tokens of their own where the assistant has numbers."""
    tokenizer = cases.load("llama2_legacy")
    ids = tokenizer.encode("The year")
    branches = [
        Branch(b" 12", -1, math.log(0.5), False),
        Branch(b" 13", -1, math.log(0.3), False),
        Branch(b" 12", -1, math.log(0.6), False, drafter=1),
    ]
    candidates = DraftAligner(tokenizer).align(ids, b"", branches)
    by_text = dict(zip(paths_of(tokenizer, candidates), candidates, strict=True))
    assert by_text[b" 1"].reach == pytest.approx(0.8)
    assert by_text[b" 12"].reach == pytest.approx(0.6)
    assert by_text[b" 13"].reach == pytest.approx(0.3)


def test_what_was_encoded_once_is_not_encoded_again(monkeypatch):
    """The tree of one step is nearly that of the next one."""
    tokenizer = cases.load("gpt2")
    aligner = DraftAligner(tokenizer)
    ids = tokenizer.encode("The verifier checks")
    branches = [Branch(b" every draft,", -1, -0.1, False)]
    branches += [Branch(b" and" + b" commits" * n, 0, -0.2, False) for n in range(1, 9)]
    before = aligner.align(ids, b"", branches)
    encoded, encode = [], tokenizer.encode
    monkeypatch.setattr(tokenizer, "encode", lambda text: encoded.append(text) or encode(text))
    assert aligner.align(ids, b"", branches) == before
    longer = [*branches, Branch(b" what", 3, -0.3, False)]
    assert len(aligner.align(ids, b"", longer)) == len(before) + len(tokenizer.encode(" what"))
    assert len(encoded) <= 3
