"""Real pairs of different families, as real processes, against `transformers` generate."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from anydraft import Client
from anydraft.cli.nodes import NodeProcess
from anydraft.models import resolve_assistant, resolve_model

pytestmark = [pytest.mark.real, pytest.mark.processes, pytest.mark.timeout(1500)]

NEW_TOKENS = 32
READY_S = 600.0
PROMPTS = (
    "Write a Python function that reverses a linked list.",
    "What is the capital of Australia, and why is it not Sydney?",
    "Translate to German: 'The weather is nice today.'",
    "Summarize in one sentence: A language model predicts the next token of a text, given all "
    "tokens before it. A small one can guess what a large one will say, and be checked.",
    "If a train travels 60 km in 45 minutes, how fast is it?",
    "def fibonacci(n):",
    "List three uses of a paperclip.",
    "请用中文介绍一下北京。",
    "Repeat after me: one two three one two three one two three one two three",
    "Write an emoji-only story about a cat 🐱.",
    "SELECT name FROM users WHERE",
)


@pytest.mark.parametrize(
    ("target", "assistant"),
    [
        ("qwen2.5-coder-0.5b-instruct", "smollm2-135m-instruct"),
        ("smollm2-135m-instruct", "gemma-3-270m"),
    ],
)
def test_ids_equal_generate(
    target: str, assistant: str, real_model: Callable[[str], tuple[Any, Any]]
) -> None:
    truths = [reference(*real_model(target), prompt) for prompt in PROMPTS]
    resolve_model(target)
    folder = resolve_assistant(assistant)
    with NodeProcess("verify_node", ["--model", target, "--listen", "127.0.0.1:0"]) as verify:
        to_verify = ["--verify", verify.wait_ready(READY_S)]
        listen = ["--listen", "127.0.0.1:0"]
        with (
            NodeProcess("draft_node", ["--model", str(folder), *to_verify, *listen]) as draft,
            Client(draft.wait_ready(READY_S)) as client,
            ThreadPoolExecutor(4) as pool,
        ):
            answers = list(pool.map(lambda prompt: ask(client, prompt), PROMPTS))
    assert [list(answer.token_ids) for answer in answers] == truths
    assert sum(answer.stats.accepted for answer in answers) > NEW_TOKENS


def ask(client: Client, prompt: str) -> Any:
    messages = [{"role": "user", "content": prompt}]
    return client.generate(
        messages=messages, max_new_tokens=NEW_TOKENS, temperature=0, timeout=900
    ).result()


def reference(model: Any, tokenizer: Any, prompt: str) -> list[int]:
    messages = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        out = model.generate(**inputs, max_new_tokens=NEW_TOKENS, do_sample=False)
    return out[0, inputs["input_ids"].shape[1] :].tolist()
