"""What ended sessions have read, and who goes on from it."""

from __future__ import annotations

import pytest

from anydraft.text import TextTokenizer
from anydraft.text.tree import TextTree
from anydraft.v1.prompt_pb2 import Prompt
from draft_node.drafters.assistant import AssistantDrafter, AssistantStream
from draft_node.drafters.kept_prefixes import MIN_PREFIX_TOKENS, KeptPrefixes
from tests.draft.scripted import ScriptedEngine, ScriptedState

PROMPT = "Tell me at some length how it is that drafts work between two nodes. "
ANSWER = "A draft is checked by the target in one pass; what agrees is kept, and so on. "


@pytest.fixture
def engine(tokenizer: TextTokenizer) -> ScriptedEngine:
    return ScriptedEngine(tokenizer, tokenizer.encode_prompt(Prompt(text=PROMPT)), ANSWER * 3)


@pytest.fixture
def drafter(engine: ScriptedEngine) -> AssistantDrafter:
    return AssistantDrafter(engine, engine.tokenizer, prefixes=KeptPrefixes(2))


def state_of(engine: ScriptedEngine, length: int = 40, first: int = 1) -> ScriptedState:
    state = engine.open()
    state.read([first, *range(2, length + 1)], wanted=False)
    return state


def play(stream: AssistantStream, *texts: str) -> TextTree:
    """Drafts until there is nothing to add, behind each of these texts."""
    tree = TextTree(max_pieces=16, max_bytes=4096)
    for text in ("", *texts):
        tree.commit(text.encode())
        stream.commit(text, turn_ms=0.0)
        for _ in range(200):
            if stream.idle or tree.num_pieces == 16:
                break
            stream.grow(tree, 16 - tree.num_pieces)
    return tree


def test_the_next_turn_of_a_chat_reads_what_is_new(
    engine: ScriptedEngine, drafter: AssistantDrafter
) -> None:
    first = drafter.open(Prompt(text=PROMPT))
    play(first, ANSWER[:10], ANSWER[10:])
    first.close()
    (kept,) = engine.states
    assert not kept.is_closed
    assert not kept.branches
    was_read = kept.num_fed
    second = drafter.open(Prompt(text=PROMPT + ANSWER + "And then? "))
    tree = play(second)
    assert tree.num_pieces
    new, encode = engine.states[1], engine.tokenizer.encode_prompt
    assert new.is_closed and new.num_fed == 0  # noqa: PT018
    assert kept.ids == encode(Prompt(text=PROMPT + ANSWER + "And then? "))
    assert kept.num_fed - was_read < len(kept.ids) / 2
    second.close()
    assert not kept.is_closed


def test_what_it_says_is_what_it_would_say_without(
    engine: ScriptedEngine, drafter: AssistantDrafter
) -> None:
    """Another end of the same beginning: the trunk is cut where they part."""
    first = drafter.open(Prompt(text=PROMPT))
    play(first, ANSWER)
    first.close()
    prompt = Prompt(text=PROMPT + ANSWER[:30])
    drafts = []
    for stream in (drafter.open(prompt), AssistantDrafter(engine, engine.tokenizer).open(prompt)):
        tree = play(stream)
        drafts.append([(held.node.text, held.logprob) for held in tree.best_first()])
    assert drafts[0] == drafts[1]
    assert drafts[0]
    assert engine.states[0].ids == engine.states[-1].ids


def test_nothing_goes_from_one_tenant_to_another(
    engine: ScriptedEngine, drafter: AssistantDrafter
) -> None:
    first = drafter.open(Prompt(text=PROMPT), tenant="a")
    play(first, ANSWER)
    first.close()
    play(drafter.open(Prompt(text=PROMPT + ANSWER), tenant="b"))
    assert engine.states[1].num_read == len(engine.states[1].ids)
    play(drafter.open(Prompt(text=PROMPT + ANSWER), tenant="a"))
    assert engine.states[2].is_closed


def test_two_sessions_never_share_a_state(
    engine: ScriptedEngine, drafter: AssistantDrafter
) -> None:
    first = drafter.open(Prompt(text=PROMPT))
    play(first, ANSWER)
    first.close()
    streams = [drafter.open(Prompt(text=PROMPT + ANSWER)) for _ in range(2)]
    for stream in streams:
        play(stream)
    assert streams[0]._state is engine.states[0]
    assert streams[1]._state is engine.states[2]
    for stream in [*streams, *streams]:
        stream.close()
    # Both have read the same: one of them is enough.
    assert sum(not state.is_closed for state in engine.states) == 1


def test_the_least_recently_used_goes_first(engine: ScriptedEngine) -> None:
    kept = KeptPrefixes(2)
    states = [state_of(engine, first=first) for first in (11, 12, 13)]
    for state in states:
        kept.keep("", state.ids, state)
    assert [state.is_closed for state in states] == [True, False, False]
    found = kept.take("", states[1].ids)
    assert found == (states[1], tuple(states[1].ids))
    kept.keep("", states[1].ids, states[1])
    newest = state_of(engine, first=14)
    kept.keep("", newest.ids, newest)
    assert [state.is_closed for state in states] == [True, False, True]
    assert len(kept) == 2


def test_a_state_that_is_of_little_use_stays_where_it_is(engine: ScriptedEngine) -> None:
    """A system prompt is read again rather than that a long chat is thrown away for it."""
    kept, state = KeptPrefixes(2), state_of(engine, 100)
    kept.keep("", state.ids, state)
    assert kept.take("", [*state.ids[:49], 5, 5]) is None
    assert kept.take("", [*state.ids[:50], 5, 5]) == (state, tuple(state.ids))


def test_the_longest_common_beginning_is_taken(engine: ScriptedEngine) -> None:
    kept = KeptPrefixes(3)
    short, long = state_of(engine, 40), state_of(engine, 60)
    short.truncate(30)
    short.read([7] * 10, wanted=False)
    for state in (long, short):
        kept.keep("", state.ids, state)
    assert kept.take("", [*long.ids[:50], 9]) == (long, tuple(long.ids))


def test_a_little_is_not_kept(engine: ScriptedEngine) -> None:
    kept, state = KeptPrefixes(2), state_of(engine, MIN_PREFIX_TOKENS - 1)
    kept.keep("", state.ids, state)
    assert state.is_closed
    off, other = KeptPrefixes(0), state_of(engine)
    off.keep("", other.ids, other)
    assert other.is_closed
