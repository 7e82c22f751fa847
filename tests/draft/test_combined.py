from __future__ import annotations

from anydraft.text import AssistantMirror, TextTokenizer
from anydraft.v1.prompt_pb2 import ChatMessage, ChatMessages, Prompt
from draft_node.drafters.assistant import AssistantDrafter
from draft_node.drafters.combined import CombinedDrafter, CombinedStream
from tests.draft.scripted import ScriptedEngine

SOURCE = "The verifier checks every draft in one forward pass, and commits the rest."
PROMPT = Prompt(text=f"Repeat: {SOURCE}\n")


def opened(
    tokenizer: TextTokenizer, script: str, prompt: Prompt = PROMPT
) -> tuple[ScriptedEngine, CombinedStream]:
    engine = ScriptedEngine(tokenizer, tokenizer.encode_prompt(prompt), script)
    return engine, CombinedDrafter(AssistantDrafter(engine, tokenizer)).open(prompt)


def draft(stream: CombinedStream, count: int) -> str:
    text = ""
    for _ in range(200):
        if stream.idle or count == 0:
            break
        if (piece := stream.step()) is not None:
            text, count = text + piece.text, count - 1
    return text


def test_who_drafts_is_decided_at_every_restart(tokenizer: TextTokenizer) -> None:
    engine, stream = opened(tokenizer, "Sure. " * 30)
    assert draft(stream, 2)
    assert engine.states[0].num_fed
    # The text now ends as the prompt does somewhere: nothing is asked of the assistant.
    stream.commit(SOURCE[:40], restart=True)
    fed = engine.states[0].num_fed
    assert SOURCE[40:].startswith(draft(stream, 4))
    assert engine.states[0].num_fed == fed
    # Where that ends, the assistant takes over, and knows all that was said meanwhile.
    stream.commit(SOURCE[40:50], restart=False)
    stream.commit(SOURCE[50:55] + "something else", restart=True)
    draft(stream, 1)
    mirror = AssistantMirror(tokenizer, engine.prompt_ids)
    mirror.append(SOURCE[:55] + "something else")
    assert engine.states[0].ids == mirror.ids


def test_a_match_with_nothing_behind_it_is_left_to_the_assistant(tokenizer: TextTokenizer) -> None:
    messages = [ChatMessage(role="user", content=SOURCE)]
    prompt = Prompt(messages=ChatMessages(messages=messages))
    engine, stream = opened(tokenizer, SOURCE + " Indeed.", prompt)
    stream.commit(SOURCE, restart=True)
    assert draft(stream, 20) == " Indeed."
    assert engine.states[0].num_fed > len(engine.prompt_ids)
