"""An assistant whose chat template refuses what the target's accepts drafts all the same."""

from __future__ import annotations

from anydraft import Client
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.prompt_pb2 import ChatMessage, ChatMessages, Prompt
from draft_node.drafters.assistant import AssistantDrafter
from tests import models_zoo, nodes, tokenizers_zoo
from tests.draft.scripted import ScriptedEngine
from tests.integration.test_exact import text_of

TURNS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% endfor %}" + TURNS
)
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "What does the verifier check?"},
]


def test_a_system_message_that_only_the_target_takes() -> None:
    target = TextTokenizer(tokenizers_zoo.build("gpt2"), chat_template=TURNS)
    small = TextTokenizer(tokenizers_zoo.build("gpt2"), chat_template=NO_SYSTEM)
    model = models_zoo.build("llama")
    model.generation_config.eos_token_id = None
    # Long enough for a drafter on a busy machine to say something before it is over.
    options = {"messages": MESSAGES, "max_new_tokens": 300, "seed": 1, "timeout": 60}
    with nodes.verify_node(nodes.served(model, target)) as verify:
        with Client(verify) as client:
            alone = client.generate(**options).result()
        messages = [ChatMessage(**message) for message in MESSAGES]
        prompt_ids = small.encode_prompt_leniently(Prompt(messages=ChatMessages(messages=messages)))
        engine = ScriptedEngine(small, prompt_ids, text_of(target, alone.token_ids))
        drafter = AssistantDrafter(engine, small)
        with nodes.draft_node(drafter, verify) as draft, Client(draft) as client:
            assisted = client.generate(**options).result()
    assert assisted.text == alone.text
    assert assisted.stats.drafted > 0
    assert engine.states[0].num_fed > len(prompt_ids)
