"""Dense models from folders and GGUF files, and the errors of files that do not fit."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from anydraft.errors import (
    FailedPreconditionError,
    NotFoundError,
    ResourceExhaustedError,
    UnsupportedModelError,
)
from anydraft.models import ModelFiles, load_dense, resolve_model
from anydraft.models.devices import require_device
from anydraft.models.loading import load_tokenizer
from tests import tokenizers_zoo
from tests.models import tiny


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_dense(tmp_path_factory.mktemp("dense"))


@pytest.fixture
def copy(dense: Path, tmp_path: Path) -> Path:
    """The dense folder, to be spoilt."""
    for file in dense.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture(scope="module")
def from_gguf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    path = tiny.save_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
    return load_dense(resolve_model(str(path)), "float32")


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=torch.arange(3, 40)[None]).logits
    return found


def test_a_folder(dense: Path) -> None:
    model, tokenizer = load_dense(resolve_model(str(dense)), torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert not model.training
    assert tokenizer.decode(tokenizer.encode("hello world")) == "hello world"


def test_gguf_is_the_same_model(from_gguf: tuple[Any, Any]) -> None:
    torch.testing.assert_close(logits(from_gguf[0]), logits(tiny.llama()), rtol=1e-4, atol=1e-5)


def test_gguf_ends_at_the_end_of_a_turn_too(from_gguf: tuple[Any, Any]) -> None:
    backend = tokenizers_zoo.build("gpt2")
    ends = [backend.token_to_id("</s>"), backend.token_to_id("<|im_end|>")]
    assert from_gguf[0].generation_config.eos_token_id == ends


def test_gguf_tokenizer_splits_digits_first(from_gguf: tuple[Any, Any]) -> None:
    pieces = from_gguf[1].convert_ids_to_tokens(from_gguf[1].encode("a  12"))
    assert pieces[-2:] == ["1", "2"]
    assert "Ġ" not in pieces[-2]


def test_gguf_tokenizer_composes_as_qwen_does(tmp_path: Path) -> None:
    path = tiny.save_gguf(tmp_path / "tiny.gguf", "qwen2")
    _, tokenizer = load_dense(resolve_model(str(path)), "float32")
    assert tokenizer.encode("e\N{COMBINING ACUTE ACCENT}") == tokenizer.encode("é")


def test_loading_restores_what_it_patched(from_gguf: tuple[Any, Any]) -> None:
    import gguf
    from transformers import modeling_gguf_pytorch_utils as loader

    assert isinstance(gguf.GGUFReader, type)
    assert gguf.get_tensor_name_map.__module__ == "gguf.tensor_mapping"
    assert isinstance(loader.tqdm, type)


def test_no_progress_bars_unless_asked(
    dense: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tiny.save_gguf(tmp_path / "tiny.gguf")
    load_dense(resolve_model(str(path)), "float32")
    load_dense(resolve_model(str(dense)), "float32")
    assert capfd.readouterr() == ("", "")


def test_onnx_cannot_be_loaded_densely(tmp_path: Path) -> None:
    files = ModelFiles("m", tmp_path, None, None, onnx_file="model.onnx")
    with pytest.raises(UnsupportedModelError, match="safetensors"):
        load_dense(files, "float32")


def test_an_unknown_architecture(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    config |= {"model_type": "of_the_future", "architectures": ["FutureForCausalLM"]}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises((UnsupportedModelError, FailedPreconditionError), match="of_the_future"):
        load_dense(resolve_model(str(copy)), "float32")


def test_a_model_that_is_no_causal_language_model(copy: Path) -> None:
    (copy / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(UnsupportedModelError, match="causal language model"):
        load_dense(resolve_model(str(copy)), "float32")


FOREIGN_CODE = """
import pathlib
pathlib.Path({marker!r}).write_text("ran")
from transformers import LlamaConfig, LlamaForCausalLM
class ForeignConfig(LlamaConfig):
    model_type = "foreign"
class ForeignForCausalLM(LlamaForCausalLM):
    config_class = ForeignConfig
"""


def bring_code(folder: Path, model_type: str) -> Path:
    """Code in `folder` that its config.json names; returns the file that it writes when it runs."""
    marker = folder / "ran"
    (folder / "foreign.py").write_text(FOREIGN_CODE.format(marker=str(marker)))
    config = json.loads((folder / "config.json").read_text())
    config["model_type"] = model_type
    config["auto_map"] = {
        "AutoConfig": "foreign.ForeignConfig",
        "AutoModelForCausalLM": "foreign.ForeignForCausalLM",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return marker


@pytest.fixture
def nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("somebody was asked"))


@pytest.mark.usefixtures("nobody_is_asked")
def test_code_of_a_model_is_refused(copy: Path) -> None:
    marker = bring_code(copy, "foreign")
    with pytest.raises(UnsupportedModelError, match="--trust-remote-code") as caught:
        load_dense(resolve_model(str(copy)), "float32")
    assert caught.value.reason == "REMOTE_CODE_REFUSED"
    assert not marker.exists()


@pytest.mark.usefixtures("nobody_is_asked")
def test_code_of_a_tokenizer_is_refused(copy: Path) -> None:
    settings = copy / "tokenizer_config.json"
    config = json.loads(settings.read_text())
    config |= {"auto_map": {"AutoTokenizer": [None, "foreign.Foreign"]}}
    config["tokenizer_class"] = "ForeignTokenizerFast"
    settings.write_text(json.dumps(config))
    marker = bring_code(copy, "foreign")
    with pytest.raises(UnsupportedModelError, match="--trust-remote-code") as caught:
        load_tokenizer(resolve_model(str(copy)))
    assert caught.value.reason == "REMOTE_CODE_REFUSED"
    assert not marker.exists()


@pytest.mark.usefixtures("nobody_is_asked")
def test_a_known_architecture_is_loaded_without_its_code(copy: Path) -> None:
    marker = bring_code(copy, "llama")
    model, _ = load_dense(resolve_model(str(copy)), "float32")
    assert type(model).__name__ == "LlamaForCausalLM"
    assert not marker.exists()


def test_trusted_code_runs(
    copy: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    modules = str(tmp_path_factory.mktemp("modules"))
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    marker = bring_code(copy, "foreign")
    model, _ = load_dense(resolve_model(str(copy)), "float32", trust_remote_code=True)
    assert type(model).__name__ == "ForeignForCausalLM"
    assert marker.exists()


def test_weights_that_are_not_there_are_not_made_up(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(FailedPreconditionError, match=r"layers\.1\.mlp\.up_proj") as caught:
        load_dense(resolve_model(str(copy)), "float32")
    assert caught.value.reason == "WEIGHTS_MISSING"


@pytest.mark.parametrize("device", ["cuda:0", "cuda", "xpu:1"])
def test_a_device_that_is_not_here(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(FailedPreconditionError, match=f"--device-map {device}.*cpu") as caught:
        require_device(device)
    assert caught.value.reason == "DEVICE_UNAVAILABLE"


def test_devices_that_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for device in (None, "cpu", "auto", "balanced", "cuda", "cuda:1"):
        require_device(device)
    with pytest.raises(FailedPreconditionError, match="cuda:0 to cuda:1"):
        require_device("cuda:2")
    with pytest.raises(FailedPreconditionError, match="cuda0 is no device"):
        require_device("cuda0")


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny.save_gguf(tmp_path / "tiny.gguf")
    files = resolve_model(str(path))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(FailedPreconditionError, match=r"gguf.*anydraft\[verify\]") as caught:
        load_dense(files, "float32")
    assert caught.value.reason == "PACKAGE_MISSING"


def test_damaged_weights(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(FailedPreconditionError, match="damaged"):
        load_dense(resolve_model(str(copy)), "float32")


def test_a_damaged_tokenizer(copy: Path) -> None:
    (copy / "tokenizer.json").write_text('{"version": "1.0"}')
    with pytest.raises(FailedPreconditionError, match=r"tokenizer\.json") as caught:
        load_dense(resolve_model(str(copy)), "float32")
    assert caught.value.reason == "TOKENIZER_BROKEN"


def test_the_tokenizer_of_another_model(copy: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    other = tokenizers_zoo.gpt2(vocab_size=700)
    PreTrainedTokenizerFast(tokenizer_object=other).save_pretrained(copy)
    with pytest.raises(FailedPreconditionError, match="different models") as caught:
        load_dense(resolve_model(str(copy)), "float32")
    assert caught.value.reason == "TOKENIZER_MISMATCH"


def test_weights_that_vanish_meanwhile(copy: Path) -> None:
    files = resolve_model(str(copy))
    (copy / "model.safetensors").unlink()
    with pytest.raises((NotFoundError, FailedPreconditionError), match="Download the model again"):
        load_dense(files, "float32")


def test_memory_that_runs_out(dense: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    def from_pretrained(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", from_pretrained)
    with pytest.raises(ResourceExhaustedError, match="smaller"):
        load_dense(resolve_model(str(dense)), "float32")
