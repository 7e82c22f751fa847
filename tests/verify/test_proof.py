"""No architecture is trusted by name: the right runner is found by measuring."""

from __future__ import annotations

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from anydraft.errors import UnsupportedModelError
from tests import models_zoo
from verify_node.runners import proof
from verify_node.runners.attention_windows import narrowed
from verify_node.runners.base import Row
from verify_node.runners.proof import choose_runner
from verify_node.runners.ragged import RaggedRunner


@pytest.mark.parametrize("name", models_zoo.EXACT_RAGGED)
def test_exact_architectures_run_ragged(name: str) -> None:
    assert choose_runner(models_zoo.build(name)).name == "ragged"


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "mixtral", "qwen3_moe", "gpt2"])
def test_low_precision_does_not_hide_an_exact_engine(name: str) -> None:
    assert choose_runner(models_zoo.build(name).to(torch.bfloat16)).name == "ragged"


@pytest.mark.parametrize("name", models_zoo.EXACT_PER_SESSION)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_others_are_found_out_and_run_one_by_one(name: str, dtype: torch.dtype) -> None:
    assert choose_runner(models_zoo.build(name).to(dtype)).name == "per-session"


@pytest.mark.parametrize("name", models_zoo.REFUSED)
def test_recurrent_state_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match="recurrent state") as refused:
        choose_runner(models_zoo.build(name))
    assert refused.value.reason == "MODEL_CANNOT_ROLL_BACK"


def test_an_encoder_decoder_is_refused() -> None:
    config = T5Config(vocab_size=64, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4)
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        choose_runner(T5ForConditionalGeneration(config))


def test_a_model_whose_cache_lies_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither way is exact: the error of both is measured, and the model is not served."""
    model = models_zoo.build("llama")
    real = proof._replay
    monkeypatch.setattr(
        proof,
        "_replay",
        lambda runner, texts: [t + torch.randn_like(t) for t in real(runner, texts)],
    )
    with pytest.raises(UnsupportedModelError, match="exactly"):
        choose_runner(model)


def test_windows_are_put_back() -> None:
    model = models_zoo.build("gemma3")
    modules = [m for m in model.modules() if getattr(m, "sliding_window", None)]
    assert modules
    with narrowed(model, 3):
        assert model.config.sliding_window == 3
        assert {m.sliding_window for m in modules} == {3}
    assert model.config.sliding_window == models_zoo.WINDOW
    assert {m.sliding_window for m in modules} == {models_zoo.WINDOW}


@pytest.mark.parametrize("name", ["llama", "gemma2", "gemma3", "gpt_oss", "mistral"])
def test_ragged_logits_are_the_models_own(name: str) -> None:
    """Error in fp32, past the real windows: one text in chunks beside another, with rollback."""
    model = models_zoo.build(name)
    texts = [torch.randint(3, models_zoo.VOCABULARY, (n,)).tolist() for n in (50, 31)]
    with torch.inference_mode():
        plain = [model(input_ids=torch.tensor([t]), use_cache=False).logits[0] for t in texts]
    runner = RaggedRunner(model)
    caches = [runner.new_cache(len(text) + 8) for text in texts]
    runner.forward([Row(caches[0], texts[0][:20], 0), Row(caches[1], texts[1][:1], 0)])
    runner.forward([Row(caches[0], [9] * 15, 1)])
    caches[0].truncate(20)
    first, second = runner.forward(
        [Row(caches[0], texts[0][20:], 30), Row(caches[1], texts[1][1:], 5)]
    )
    assert torch.allclose(first, plain[0][20:], atol=1e-4)
    assert torch.allclose(second, plain[1][-5:], atol=1e-4)
