"""What an assistant drafts is what its model says, best first, whatever was committed meanwhile."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anydraft.errors import FailedPreconditionError
from anydraft.text import AssistantMirror, TextTokenizer
from anydraft.text.tree import TextTree
from anydraft.v1.prompt_pb2 import ChatMessage, ChatMessages, Prompt
from draft_node.drafters import thrift
from draft_node.drafters.assistant import AssistantDrafter
from draft_node.engines.base import Choices
from tests import tokenizers_zoo
from tests.draft.scripted import HashedEngine, ScriptedEngine, ScriptedState

PROMPT = "Say something about the target, the draft and the verifier: "
SCRIPT = "The draft is checked by the target; naïve 🙂 words, 今天天气很好, 龍🦊 and 'so on'."
NO_FLOOR = 0.0


@dataclass
class Drafting:
    """A stream and its tree, as a loop holds them."""

    drafter: AssistantDrafter
    prompt: Prompt
    tree: TextTree = field(default_factory=lambda: TextTree(max_pieces=96, max_bytes=65536))
    committed: str = ""
    in_turn: bool = False

    def __post_init__(self) -> None:
        self.stream = self.drafter.open(self.prompt, in_turn=self.in_turn)

    @property
    def state(self) -> ScriptedState:
        return self.drafter.engine.states[-1]  # type: ignore[attr-defined, no-any-return]

    def commit(self, text: str, *, turn_ms: float = 1e6) -> None:
        self.committed += text
        self.tree.commit(text.encode())
        self.stream.commit(text, turn_ms=turn_ms)

    def grow(self, count: int = 1000) -> None:
        """So many passes, or until there is nothing more to do."""
        while count and not self.stream.idle and self.tree.room:
            self.stream.grow(self.tree, self.tree.room)
            count -= 1

    def until_drafted(self) -> None:
        """Reads all that is to be read."""
        while not self.tree.num_pieces and not self.stream.idle:
            self.grow(1)

    def best(self, pieces: int = 1000) -> str:
        """The likeliest path, from node to node."""
        nodes, said = self.tree.roots, b""
        while nodes and pieces:
            best = max(nodes, key=lambda node: node.logprob)
            said += self.tree.rest(best)
            nodes, pieces = best.children, pieces - 1
        return said.decode(errors="ignore")


def opened(
    tokenizer: TextTokenizer,
    script: str = SCRIPT,
    *,
    prompt: Prompt | None = None,
    min_probability: float = 0.02,
    max_context_tokens: int = 4096,
    **engine: object,
) -> tuple[ScriptedEngine, Drafting]:
    prompt = prompt or Prompt(text=PROMPT)
    ids = tokenizer.encode_prompt_leniently(prompt)
    scripted = ScriptedEngine(tokenizer, ids, script, **engine)  # type: ignore[arg-type]
    drafter = AssistantDrafter(scripted, tokenizer, min_probability, max_context_tokens)
    return scripted, Drafting(drafter, prompt)


def mirror_ids(tokenizer: TextTokenizer, engine: ScriptedEngine, committed: str) -> list[int]:
    mirror = AssistantMirror(tokenizer, engine.prompt_ids)
    mirror.append(committed)
    return mirror.ids


def test_drafts_the_script_and_its_end(tokenizer: TextTokenizer) -> None:
    script = SCRIPT[:20]
    _, drafting = opened(tokenizer, script)
    drafting.grow()
    assert drafting.best() == script
    ends = [held for held in drafting.tree.best_first() if held.node.ends]
    assert any(drafting.tree.path(held.node)[-2].end == len(script) for held in ends)
    assert b"</s>" not in b"".join(held.node.text for held in drafting.tree.best_first())


def test_bytes_of_characters_are_pieces(tokenizer: TextTokenizer) -> None:
    script = "今天 🙂 龍"
    _, drafting = opened(tokenizer, script)
    drafting.grow()
    assert drafting.best() == script
    drafting.commit(script[:1])
    drafting.grow()
    assert drafting.best() == script[1:]


def test_long_prompts_are_read_in_chunks(tokenizer: TextTokenizer) -> None:
    engine, drafting = opened(tokenizer, prompt=Prompt(text="many words " * 200), chunk_tokens=50)
    drafting.grow(1)
    assert drafting.tree.num_pieces == 0
    assert drafting.state.length == 50
    # A verdict in the middle of that loses nothing of what was read.
    drafting.commit("The")
    drafting.until_drafted()
    assert drafting.best(3) in SCRIPT
    assert drafting.state.num_read <= len(engine.prompt_ids) + 5


def test_on_a_shared_machine_the_target_reads_first(tokenizer: TextTokenizer) -> None:
    engine, _ = opened(tokenizer)
    drafter = AssistantDrafter(engine, tokenizer)
    drafting = Drafting(drafter, Prompt(text=PROMPT), in_turn=True)
    drafting.grow()
    assert drafting.stream.idle
    assert drafting.state.num_calls == 0
    drafting.commit("The")
    drafting.grow(10)
    assert SCRIPT.startswith("The" + drafting.best())


def test_on_a_shared_machine_a_long_prompt_is_read_in_a_turn_that_is_long_enough(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 ms a part. What it takes is known from the first part on, and told."""
    now = [0.0]
    monkeypatch.setattr(thrift.time, "perf_counter", lambda: now[0])
    engine, _ = opened(tokenizer)
    drafter = AssistantDrafter(engine, tokenizer)
    drafting = Drafting(drafter, Prompt(text=PROMPT * 40), in_turn=True)
    read = type(drafting.state).read

    def takes_time(*args: Any, **options: Any) -> Any:
        now[0] += 0.1
        return read(*args, **options)

    monkeypatch.setattr(type(drafting.state), "read", takes_time)
    lengths, needs = [], []
    for turn_ms in (200.0, 200.0, 0.0):
        drafting.commit("", turn_ms=turn_ms)
        drafting.grow()
        assert drafting.stream.idle
        assert not drafting.tree.num_pieces
        lengths.append(drafting.state.length)
        needs.append(drafting.stream.needs_ms)
    assert lengths == [engine.chunk_tokens] * 3
    num_ids = len(engine.prompt_ids) * 40
    assert needs == [pytest.approx(100 * num_ids / engine.chunk_tokens, rel=0.2)] * 3
    drafting.commit("", turn_ms=1.1 * needs[0])
    drafting.grow()
    assert drafting.tree.num_pieces
    assert drafting.stream.needs_ms == 0.0
    drafting.commit("The", turn_ms=1e6)
    drafting.grow(200)
    assert SCRIPT.startswith("The" + drafting.best())


def test_nothing_unlikely_is_drafted(tokenizer: TextTokenizer) -> None:
    _, drafting = opened(tokenizer, min_probability=0.3)
    drafting.grow()
    held = list(drafting.tree.best_first())
    assert min(piece.logprob for piece in held) >= math.log(0.3)
    # 0.97 to the 39th: as deep as that, or as paths may be.
    assert 30 <= max(piece.depth for piece in held) < 39
    assert drafting.stream.idle


def test_special_tokens_are_no_text(tokenizer: TextTokenizer) -> None:
    _, drafting = opened(tokenizer, "Well<|im_end|>more")
    drafting.grow()
    assert not any(b"im_end" in held.node.text for held in drafting.tree.best_first())
    assert "Well" in [drafting.best(count) for count in range(6)]


def test_agreeing_text_costs_nothing(tokenizer: TextTokenizer) -> None:
    engine, drafting = opened(tokenizer)
    drafting.grow(12)
    drafted, computed = drafting.best(6), drafting.state.num_fed
    drafting.commit(drafted[:3])
    drafting.commit(drafted[3:])
    drafting.grow(1)
    assert SCRIPT.startswith(drafted + drafting.best())
    assert drafting.state.num_read == len(engine.prompt_ids)
    assert drafting.state.num_fed <= computed + engine.max_paths


def test_a_correction_cuts_the_cache_to_what_still_stands(tokenizer: TextTokenizer) -> None:
    engine, drafting = opened(tokenizer)
    drafting.grow(12)
    committed = drafting.best(8)[:-2] + "XY"
    read = drafting.state.num_read
    drafting.commit(committed)
    drafting.until_drafted()
    ids = mirror_ids(tokenizer, engine, committed)
    assert drafting.state.ids == ids
    assert drafting.state.num_read - read <= len(ids) - len(engine.prompt_ids)


def test_a_second_choice_that_is_committed_keeps_its_branch(tokenizer: TextTokenizer) -> None:
    engine, drafting = opened(tokenizer, min_probability=0.001)
    drafting.grow(30)
    second = sorted(drafting.tree.roots, key=lambda node: -node.logprob)[1]
    assert second.children
    drafting.commit(second.text.decode())
    held = drafting.tree.num_pieces
    assert held
    drafting.grow(2)
    assert drafting.tree.num_pieces > held
    assert drafting.state.num_read == len(engine.prompt_ids)


@pytest.mark.parametrize("max_paths", [1, 3])
@pytest.mark.parametrize("num_passes", [1, 2, 5, 9])
def test_the_likeliest_places_are_looked_at_first(
    tokenizer: TextTokenizer, max_paths: int, num_passes: int
) -> None:
    prompt = Prompt(text=PROMPT)
    ids = tokenizer.encode_prompt(prompt)
    engine = HashedEngine(tokenizer, ids, "", max_paths=max_paths, chunk_tokens=1000)
    drafting = Drafting(AssistantDrafter(engine, tokenizer, NO_FLOOR), prompt)
    drafting.grow(num_passes)
    found = {
        b"|".join(step.text or b"</s>" for step in drafting.tree.path(held.node)): held.logprob
        for held in drafting.tree.best_first()
    }
    assert found == pytest.approx(naive_tree(engine, ids, num_passes))


def naive_tree(engine: HashedEngine, ids: Sequence[int], num_passes: int) -> dict[bytes, float]:
    """Best first over plain calls of the model: what is said, and how likely."""
    tree: dict[bytes, float] = {}
    heap: list[tuple[float, tuple[int, ...], bytes]] = [(0.0, (), b"")]
    for number in range(num_passes):
        wanted = engine.max_paths if number else 1
        for against, path, said in [heapq.heappop(heap) for _ in range(min(wanted, len(heap)))]:
            choices = engine.choices([*ids, *path])
            for token_id, logprob in zip(choices.token_ids[:3], choices.logprobs[:3], strict=True):
                ends = token_id in engine.eos_ids
                text = b"</s>" if ends else engine.tokenizer.token_bytes(token_id)
                child = said + b"|" * bool(said) + text
                tree[child] = logprob - against
                if not ends:
                    heapq.heappush(heap, (against - logprob, (*path, token_id), child))
    return tree


TEXTS = st.text(st.sampled_from("ab the.\n'é🙂天"), max_size=8)
MOVES = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 9), st.integers(0, 5), TEXTS), max_size=8
)


@pytest.mark.parametrize("name", sorted(tokenizers_zoo.EXACT))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(moves=MOVES, max_paths=st.sampled_from([1, 3]), hashed=st.booleans())
def test_the_invariant(
    name: str, moves: list[tuple[int, int, int, str]], max_paths: int, hashed: bool
) -> None:
    """Whatever was drafted, accepted and corrected, in every family of tokenizers: the trunk stands
    for the committed text, and every branch is as likely as the model says behind that."""
    tokenizer = TextTokenizer(tokenizers_zoo.build(name))
    prompt = Prompt(text=PROMPT)
    ids = tokenizer.encode_prompt(prompt)
    kind = HashedEngine if hashed else ScriptedEngine
    engine = kind(tokenizer, ids, SCRIPT, max_paths=max_paths)
    drafting = Drafting(AssistantDrafter(engine, tokenizer, NO_FLOOR), prompt)
    for num_passes, num_accepted, which, correction in moves:
        drafting.grow(num_passes)
        accepted = some_path(drafting.tree, which).decode(errors="ignore")[:num_accepted]
        drafting.commit(accepted)
        drafting.commit(correction)
        drafting.grow(1)
        check(drafting, engine, tokenizer)


def some_path(tree: TextTree, which: int) -> bytes:
    held = list(tree.best_first())
    if not held:
        return b""
    path = tree.path(held[which * len(held) // 6].node)
    return b"".join(tree.rest(node) for node in path)


def check(drafting: Drafting, engine: ScriptedEngine, tokenizer: TextTokenizer) -> None:
    stream, num_prompt = drafting.stream, len(engine.prompt_ids)
    root = stream._root
    if root is None:
        mirror = mirror_ids(tokenizer, engine, drafting.committed)
        assert mirror[: drafting.state.length] == drafting.state.ids
        return
    ids = [*drafting.state.ids, *root.ids]
    said = tokenizer.text_bytes(ids[num_prompt:])
    committed = drafting.committed.encode()
    assert committed.startswith(said)
    for branch in root.branches():
        path = branch.path()
        choices: Choices = engine.choices([*ids, *path[:-1]])
        place = choices.token_ids.index(branch.token_id)
        assert branch.node.logprob == choices.logprobs[place]
        text = said + tokenizer.text_bytes(path if not branch.node.ends else path[:-1])
        assert text.startswith(committed)
        assert len(text) == branch.node.end
        assert branch.node in drafting.tree


def test_numbers_that_mean_nothing_are_no_draft(tokenizer: TextTokenizer) -> None:
    engine, drafting = opened(tokenizer)
    drafting.grow(2)
    held = drafting.tree.num_pieces
    choices = engine.choices
    engine.choices = lambda ids: Choices((3, 4), ())  # type: ignore[method-assign]
    drafting.grow()
    assert drafting.stream.idle
    assert drafting.tree.num_pieces == held
    engine.choices = choices  # type: ignore[method-assign]
    drafting.commit("Something else")
    drafting.until_drafted()
    assert drafting.tree.num_pieces


def test_a_text_longer_than_the_context_keeps_its_end(tokenizer: TextTokenizer) -> None:
    script = "one two three four five six seven eight nine ten " * 30
    engine, drafting = opened(tokenizer, script, context_tokens=80)
    for _ in range(60):
        drafting.grow(5)
        drafting.commit(drafting.best(5))
        drafting.commit("word ")
        drafting.until_drafted()
        ids = mirror_ids(tokenizer, engine, drafting.committed)
        assert drafting.state.length <= 80
        assert ids[-10:] == drafting.state.ids[-10:]
    assert len(ids) > 160
    # Everything is read again only when the context is nearly full.
    assert drafting.state.num_fed < 30 * len(ids)


def test_a_text_that_is_drafted_all_along_outgrows_the_context(tokenizer: TextTokenizer) -> None:
    script = "one two three four five six seven eight nine ten " * 30
    _, drafting = opened(tokenizer, script, context_tokens=100)
    for _ in range(60):
        drafting.grow(6)
        if drafting.tree.num_pieces:
            drafting.commit(drafting.best(3))
        assert drafting.state.length <= 100
    assert len(drafting.committed) > 200


def test_a_long_prompt_is_read_from_where_its_window_begins(tokenizer: TextTokenizer) -> None:
    """Whatever the model was made for: a session holds, and reads, no more than it is given."""
    prompt = Prompt(text="one two three four five six seven " * 60)
    engine, drafting = opened(tokenizer, prompt=prompt, max_context_tokens=100)
    assert len(engine.prompt_ids) > 400
    drafting.until_drafted()
    assert drafting.state.num_read == 50


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
    engine, drafting = opened(strict, prompt=prompt)
    assert engine.prompt_ids == strict.encode("Brief!\n\nA")
    drafting.grow(20)
    assert SCRIPT.startswith(drafting.best(10))
