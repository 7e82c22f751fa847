"""The assistant's cache holds its own encoding of prompt and committed text, and its draft."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anydraft.errors import FailedPreconditionError
from anydraft.text import AssistantMirror, TextTokenizer
from anydraft.v1.prompt_pb2 import ChatMessage, ChatMessages, Prompt
from draft_node.drafters.assistant import AssistantDrafter, AssistantStream
from draft_node.drafters.base import Piece
from tests import tokenizers_zoo
from tests.draft.scripted import ScriptedEngine

PROMPT = "Say something about the target, the draft and the verifier: "
SCRIPT = "The draft is checked by the target; naïve 🙂 words, 今天天气很好, 龍🦊 and 'so on'."


def opened(
    tokenizer: TextTokenizer, script: str = SCRIPT, **engine: object
) -> tuple[ScriptedEngine, AssistantStream]:
    prompt = Prompt(text=PROMPT)
    scripted = ScriptedEngine(tokenizer, tokenizer.encode_prompt(prompt), script, **engine)  # type: ignore[arg-type]
    return scripted, AssistantDrafter(scripted, tokenizer).open(prompt)


def draft(stream: AssistantStream, count: int = 500) -> list[Piece]:
    pieces: list[Piece] = []
    for _ in range(10 * count):
        if stream.idle or len(pieces) >= count:
            break
        piece = stream.step()
        if piece is not None:
            pieces.append(piece)
    return pieces


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def expected_ids(tokenizer: TextTokenizer, engine: ScriptedEngine, committed: str) -> list[int]:
    mirror = AssistantMirror(tokenizer, engine.prompt_ids)
    mirror.append(committed)
    return mirror.ids


def test_drafts_the_script_and_its_end(tokenizer: TextTokenizer) -> None:
    _, stream = opened(tokenizer)
    pieces = draft(stream)
    assert text_of(pieces) == SCRIPT
    assert pieces[-1].ends
    assert stream.idle
    assert all(piece.logprob <= 0 for piece in pieces)
    # Characters over several tokens: whole, at the piece that completes them.
    assert sum(not piece.text for piece in pieces) > 2
    assert "</s>" not in text_of(pieces)


def test_long_prompts_are_read_in_steps(tokenizer: TextTokenizer) -> None:
    prompt = Prompt(text="many words " * 200)
    engine = ScriptedEngine(tokenizer, tokenizer.encode_prompt(prompt), SCRIPT)
    stream = AssistantDrafter(engine, tokenizer).open(prompt)
    assert stream.step() is None
    assert 0 < engine.states[0].length < len(engine.prompt_ids)
    # A verdict in the middle of that loses nothing of what was read.
    stream.commit("The", restart=True)
    assert text_of(draft(stream, 2)) in SCRIPT
    assert engine.states[0].num_fed <= len(engine.prompt_ids) + 5


def test_doubt_ends_a_draft_after_the_doubtful_piece(tokenizer: TextTokenizer) -> None:
    (doubtful,) = (t for t in tokenizer.encode(" the")[:1])
    doubt = tokenizer.token_bytes(doubtful).decode()
    _, stream = opened(tokenizer, doubts=frozenset([doubt]))
    pieces = draft(stream)
    assert text_of(pieces) == SCRIPT[: SCRIPT.index(doubt) + len(doubt)]
    assert not pieces[-1].ends
    stream.commit(text_of(pieces), restart=True)
    assert text_of(draft(stream, 3)) == "".join(
        tokenizer.token_bytes(t).decode()
        for t in tokenizer.encode(SCRIPT[len(text_of(pieces)) :])[:3]
    )


def test_special_tokens_end_a_draft_unsaid(tokenizer: TextTokenizer) -> None:
    _, stream = opened(tokenizer, "Well<|im_end|>more")
    pieces = draft(stream)
    assert text_of(pieces) == "Well"
    assert not any(piece.ends for piece in pieces)


def test_bytes_that_are_no_text_end_a_draft(tokenizer: TextTokenizer) -> None:
    engine, stream = opened(tokenizer)
    (stray,) = (t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) == b"\xff")
    engine.next_id = lambda ids: stray  # type: ignore[method-assign]
    assert draft(stream) == []
    assert stream.idle


def test_agreeing_text_costs_nothing(tokenizer: TextTokenizer) -> None:
    engine, stream = opened(tokenizer)
    drafted = text_of(draft(stream, 6))
    fed = engine.states[0].num_fed
    stream.commit(drafted[:3], restart=False)
    stream.commit(drafted[3:], restart=False)
    more = draft(stream, 4)
    assert SCRIPT.startswith(drafted + text_of(more))
    assert engine.states[0].num_fed == fed + 4


def test_a_correction_cuts_the_cache_to_what_still_stands(tokenizer: TextTokenizer) -> None:
    engine, stream = opened(tokenizer)
    drafted = text_of(draft(stream, 8))
    committed = drafted[:-2] + "XY"
    fed = engine.states[0].num_fed
    stream.commit(committed, restart=True)
    draft(stream, 1)
    ids = expected_ids(tokenizer, engine, committed)
    assert engine.states[0].ids == ids
    assert engine.states[0].num_fed - fed < len(ids) - len(engine.prompt_ids)


TEXTS = st.text(st.sampled_from("ab the.\n'é🙂天"), min_size=1, max_size=8)


@pytest.mark.parametrize("name", sorted(tokenizers_zoo.EXACT))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 9), TEXTS), max_size=8))
def test_the_invariant(name: str, moves: list[tuple[int, int, str]]) -> None:
    """Whatever was drafted, accepted and corrected, in every family of tokenizers."""
    tokenizer = TextTokenizer(tokenizers_zoo.build(name))
    engine, stream = opened(tokenizer)
    committed = ""
    mirror = AssistantMirror(tokenizer, engine.prompt_ids)
    for num_drafted, num_accepted, correction in moves:
        drafted = text_of(draft(stream, num_drafted))
        accepted = drafted[:num_accepted]
        stream.commit(accepted, restart=False)
        stream.commit(correction, restart=True)
        committed += accepted + correction
        mirror.append(accepted + correction)
        draft(stream, 1)
        state = engine.states[0]
        assert state.ids[: len(mirror.ids)] == mirror.ids
        assert tokenizer.text_bytes(state.ids[len(engine.prompt_ids) :]).decode() == committed


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_no_draft(tokenizer: TextTokenizer, value: float) -> None:
    engine, stream = opened(tokenizer)
    before = draft(stream, 2)
    state = engine.states[0]
    feed = state.feed
    state.feed = lambda ids: np.full_like(feed(ids), value)  # type: ignore[method-assign]
    assert stream.step() is None
    assert stream.idle
    state.feed = feed  # type: ignore[method-assign]
    stream.commit(text_of(before), restart=True)
    assert draft(stream, 1)


def test_a_text_longer_than_the_context_keeps_its_end(tokenizer: TextTokenizer) -> None:
    script = "one two three four five six seven eight nine ten " * 30
    engine, stream = opened(tokenizer, script, context_tokens=80)
    committed = ""
    for _ in range(60):
        drafted = text_of(draft(stream, 5))
        stream.commit(drafted, restart=False)
        stream.commit("word ", restart=True)
        committed += drafted + "word "
        draft(stream, 1)
        ids = expected_ids(tokenizer, engine, committed)
        held = engine.states[0].ids
        assert len(held) <= 80
        assert ids[-10:] == held[-10:]
    assert len(expected_ids(tokenizer, engine, committed)) > 160
    # Everything is read again only when the context is nearly full.
    assert engine.states[0].num_fed < 12 * len(ids)


def test_a_long_prompt_is_read_from_where_its_window_begins(tokenizer: TextTokenizer) -> None:
    """Whatever the model was made for: a session holds, and reads, no more than it is given."""
    prompt = Prompt(text="one two three four five six seven " * 60)
    engine = ScriptedEngine(tokenizer, tokenizer.encode_prompt(prompt), SCRIPT)
    stream = AssistantDrafter(engine, tokenizer, max_context_tokens=100).open(prompt)
    assert len(engine.prompt_ids) > 400
    for _ in range(20):
        stream.commit(text_of(draft(stream, 8)) + "word ", restart=True)
        assert len(engine.states[0].ids) <= 100
    stream = AssistantDrafter(engine, tokenizer, max_context_tokens=100).open(prompt)
    draft(stream, 1)
    assert engine.states[1].num_fed == 50


def test_an_unbroken_draft_stops_at_the_context(tokenizer: TextTokenizer) -> None:
    engine, stream = opened(tokenizer, "word " * 200, context_tokens=60)
    pieces = draft(stream)
    assert stream.idle
    assert len(engine.states[0].ids) == 60
    stream.commit(text_of(pieces), restart=True)
    assert draft(stream, 3)


def test_files_of_two_models_are_refused(tokenizer: TextTokenizer) -> None:
    class Small(ScriptedEngine):
        vocab_size = 10

    with pytest.raises(FailedPreconditionError, match="different models"):
        AssistantDrafter(Small(tokenizer, [], ""), tokenizer)


def test_drafts_for_messages_that_its_template_refuses(tokenizer: TextTokenizer) -> None:
    refusing = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}{{ m.content }}{% endfor %}"
    )
    strict = TextTokenizer(tokenizer.backend, chat_template=refusing)
    messages = [ChatMessage(role="system", content="Brief!"), ChatMessage(role="user", content="A")]
    prompt = Prompt(messages=ChatMessages(messages=messages))
    engine = ScriptedEngine(strict, strict.encode("Brief!\n\nA"), SCRIPT)
    assert text_of(draft(AssistantDrafter(engine, strict).open(prompt))) == SCRIPT
