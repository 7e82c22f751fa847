from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anydraft.errors import InvalidRequestError, NotFoundError
from anydraft.text.tree import TextTree
from anydraft.v1.prompt_pb2 import Prompt
from draft_node.drafters.assistant import AssistantDrafter
from draft_node.drafters.combined import CombinedDrafter
from draft_node.drafters.lookup import LookupDrafter
from draft_node.load import DraftSettings, load_drafter


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"engine": "magic", "model": "m"}, "--engine magic"),
        ({}, "--model"),
        ({"engine": "torch"}, "--model"),
        ({"engine": "lookup", "lookup": False}, "--no-lookup"),
        ({"model": "m", "max_draft": 0}, "--max-draft"),
        ({"model": "m", "threads": 0}, "--threads"),
        ({"model": "m", "max_context_tokens": 8}, "--max-context"),
        ({"model": "m", "device_map": "cpu"}, "--device-map"),
        ({"model": "m", "lookup": False, "lookup_meanwhile": True}, "--lookup-meanwhile"),
        ({"model": "m", "min_probability": 1.5}, "--min-probability"),
        ({"model": "m", "min_probability": float("nan")}, "--min-probability"),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_flag(values: dict[str, Any], flag: str) -> None:
    with pytest.raises(InvalidRequestError, match=flag):
        DraftSettings(**values)


def test_an_onnx_folder(genai_folder: Path) -> None:
    loaded = load_drafter(DraftSettings(model=str(genai_folder), threads=1))
    assert isinstance(loaded.drafter, CombinedDrafter)
    assert "model.onnx, 1 threads, prompt lookup" in loaded.engine
    assert loaded.assistant == genai_folder.name
    tree = TextTree(max_pieces=96, max_bytes=1000)
    loaded.drafter.open(Prompt(text="Some text")).grow(tree, 96)
    assert tree.num_pieces


def test_without_lookup(genai_folder: Path) -> None:
    settings = DraftSettings(model=str(genai_folder), lookup=False, min_probability=0.5)
    loaded = load_drafter(settings)
    assert isinstance(loaded.drafter, AssistantDrafter)
    assert loaded.drafter.min_probability == 0.5


def test_a_torch_folder(llama: Any, genai_folder: Path, tmp_path: Path) -> None:
    llama.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((genai_folder / name).read_bytes())
    settings = DraftSettings(model=str(tmp_path), engine="torch", device_map="cpu", lookup=False)
    loaded = load_drafter(settings)
    assert loaded.engine.startswith("torch")
    tree = TextTree(max_pieces=96, max_bytes=1000)
    loaded.drafter.open(Prompt(text="Some text")).grow(tree, 96)
    assert tree.num_pieces


def test_lookup_alone_needs_no_model() -> None:
    loaded = load_drafter(DraftSettings(engine="lookup"))
    assert isinstance(loaded.drafter, LookupDrafter)
    assert loaded.drafter.memory is not None
    assert loaded.assistant == "prompt lookup"


def test_lookup_without_memory() -> None:
    loaded = load_drafter(DraftSettings(engine="lookup", memory=False))
    assert isinstance(loaded.drafter, LookupDrafter)
    assert loaded.drafter.memory is None


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(NotFoundError):
        load_drafter(DraftSettings(model="no-such-assistant"))
