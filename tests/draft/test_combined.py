from __future__ import annotations

from anydraft.text import TextTokenizer
from anydraft.text.tree import TextTree
from anydraft.v1.prompt_pb2 import Prompt
from draft_node.drafters.assistant import AssistantDrafter
from draft_node.drafters.combined import CombinedDrafter
from tests.draft.scripted import ScriptedEngine

SOURCE = "The verifier checks every draft in one forward pass, and commits the rest of it at once."


class Drafting:
    def __init__(self, tokenizer: TextTokenizer, script: str, prompt: str, **engine: int) -> None:
        asked = Prompt(text=prompt)
        self.engine = ScriptedEngine(tokenizer, tokenizer.encode_prompt(asked), script, **engine)  # type: ignore[arg-type]
        self.stream = CombinedDrafter(AssistantDrafter(self.engine, tokenizer)).open(asked)
        self.tree = TextTree(max_pieces=96, max_bytes=65536)

    def commit(self, text: str) -> None:
        self.tree.commit(text.encode())
        self.stream.commit(text, turn_ms=0.0)

    def grow(self, count: int = 100) -> None:
        while count and not self.stream.idle and self.tree.room:
            self.stream.grow(self.tree, self.tree.room)
            count -= 1

    def said(self) -> set[bytes]:
        held = self.tree.best_first()
        return {b"".join(map(self.tree.rest, self.tree.path(h.node))) for h in held}


def test_lookup_drafts_while_the_assistant_reads(tokenizer: TextTokenizer) -> None:
    drafting = Drafting(tokenizer, "Sure. ", f"Repeat: {SOURCE} " * 20, chunk_tokens=8)
    drafting.commit(SOURCE[:20])
    drafting.grow(1)
    assert SOURCE[20:].encode() in drafting.said()
    drafting.grow(3)
    (state,) = drafting.engine.states
    assert state.length < len(drafting.engine.prompt_ids)


def test_where_lookup_is_sure_the_assistant_rests(tokenizer: TextTokenizer) -> None:
    drafting = Drafting(tokenizer, "Sure. " * 30, f"Repeat: {SOURCE}\n")
    drafting.commit(SOURCE[:70])
    drafting.grow()
    assert drafting.stream.idle
    assert drafting.said() >= {SOURCE[70:].encode()}
    assert drafting.engine.states[0].num_calls == 0
    # Where that ends, the assistant takes over, and knows all that was said meanwhile.
    drafting.commit(SOURCE[70:] + " Something else")
    drafting.grow()
    assert drafting.engine.states[0].length >= len(drafting.engine.prompt_ids)
    assert drafting.tree.num_pieces


def test_where_lookup_is_not_sure_both_grow(tokenizer: TextTokenizer) -> None:
    drafting = Drafting(tokenizer, SOURCE[:20] + "is never asked.", f"Repeat: {SOURCE}\n")
    drafting.commit(SOURCE[:20])
    drafting.grow()
    said = drafting.said()
    assert SOURCE[20:32].encode() in {text[:12] for text in said}
    assert b"is never" in {text[:8] for text in said}
