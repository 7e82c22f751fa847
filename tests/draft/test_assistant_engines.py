"""What is drafted on real engines, against plain passes of transformers over whole texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anydraft.text import TextTokenizer
from anydraft.text.tree import TextTree
from anydraft.v1.prompt_pb2 import Prompt
from draft_node.drafters.assistant import AssistantDrafter, AssistantStream
from draft_node.engines.base import AssistantEngine

PROMPT = Prompt(text="The draft is checked. ")


@pytest.fixture(params=["onnx, chains", "torch, trees"])
def engine(request: pytest.FixtureRequest, genai_folder: Path, llama: Any) -> AssistantEngine:
    if request.param == "torch, trees":
        from draft_node.engines.torch import TorchEngine

        made = TorchEngine(llama)
        # What a pass costs on the machine of the test is not the question.
        made.max_paths = 4
        return made
    from draft_node.engines.onnx import OnnxEngine

    return OnnxEngine(genai_folder, threads=1)


def test_every_piece_is_as_likely_as_the_model_says(
    engine: AssistantEngine, tokenizer: TextTokenizer, llama: Any
) -> None:
    """Through commits that were drafted, that end inside a token, and that nobody drafted."""
    tree = TextTree(max_pieces=60, max_bytes=65536)
    stream = AssistantDrafter(engine, tokenizer, 0.0).open(PROMPT)
    prompt_ids = tokenizer.encode_prompt(PROMPT)
    checked = 0
    for turn in range(8):
        for _ in range(5):
            if not stream.idle and tree.room:
                stream.grow(tree, tree.room)
        checked += check(stream, tree, prompt_ids, tokenizer, llama)
        text = "so " if turn % 3 == 2 else drafted(tree, 1 + turn % 3)
        tree.commit(text.encode())
        stream.commit(text, turn_ms=0.0)
    assert checked > 20


def drafted(tree: TextTree, depth: int) -> str:
    """Some text that was drafted, as deep as that, or deeper until it is one."""
    for held in sorted(tree.best_first(), key=lambda held: held.depth):
        said = b"".join(map(tree.rest, tree.path(held.node)))
        if held.depth >= depth and not held.node.ends and said.decode(errors="ignore") != "":
            return said.decode(errors="ignore")
    return "and "


def check(
    stream: AssistantStream,
    tree: TextTree,
    prompt_ids: list[int],
    tokenizer: TextTokenizer,
    llama: Any,
) -> int:
    import torch

    root = stream._root
    if root is None:
        return 0
    trunk = [*stream._trunk, *root.ids]
    assert trunk[: len(prompt_ids)] == prompt_ids
    checked = 0
    for branch in list(root.branches())[::4]:
        ids = [*trunk, *branch.path()]
        with torch.no_grad():
            logits = llama(torch.tensor([ids[:-1]])).logits[0, -1].double()
        expected = float(logits.log_softmax(-1)[ids[-1]])
        assert branch.node.logprob == pytest.approx(expected, abs=2e-3)
        said = tokenizer.text_bytes(ids[len(prompt_ids) :][: -1 if branch.node.ends else None])
        assert len(said) == branch.node.end
        assert branch.node in tree
        checked += 1
    return checked
