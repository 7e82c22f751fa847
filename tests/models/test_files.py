"""Layouts of models on disk, and what is said when something is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anydraft.errors import (
    AnydraftError,
    FailedPreconditionError,
    NotFoundError,
    UnsupportedModelError,
)
from anydraft.models.files import (
    ModelFiles,
    choose_onnx,
    dense_companions,
    display_name,
    inspect_local,
    onnx_companions,
)

DENSE = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": "w"}
TRANSFORMERS_JS = [
    "config.json",
    "tokenizer.json",
    "README.md",
    "model.safetensors",
    "onnx/model.onnx",
    "onnx/model.onnx_data",
    "onnx/model_fp16.onnx",
    "onnx/model_int8.onnx",
    "onnx/model_q4.onnx",
    "onnx/model_q4.onnx_data",
    "onnx/model_q4.onnx_data_1",
    "onnx/model_q4f16.onnx",
    "onnx/model_quantized.onnx",
]
GENAI = [
    "README.md",
    "cpu_and_mobile/cpu-int4-rtn-block-32/model.onnx",
    "cpu_and_mobile/cpu-int4-rtn-block-32/model.onnx.data",
    "cpu_and_mobile/cpu-int4-rtn-block-32/tokenizer.json",
    "cpu_and_mobile/cpu-int4-rtn-block-32/genai_config.json",
    "cuda/cuda-int4-rtn-block-32/model.onnx",
    "cuda/cuda-fp16/model.onnx",
]


def fill(folder: Path, files: dict[str, str] | list[str]) -> Path:
    contents = files if isinstance(files, dict) else dict.fromkeys(files, "x")
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def inspected(path: Path, prefer: str = "dense", precision: str | None = None) -> ModelFiles:
    return inspect_local(path, "m", prefer=prefer, precision=precision)  # type: ignore[arg-type]


def test_a_dense_folder(tmp_path: Path) -> None:
    assert inspected(fill(tmp_path, DENSE)) == ModelFiles("m", tmp_path, None, None)


@pytest.mark.parametrize(
    ("left_out", "named"),
    [("config.json", "config.json"), ("tokenizer.json", "a tokenizer")],
)
def test_missing_files_are_named(tmp_path: Path, left_out: str, named: str) -> None:
    fill(tmp_path, {name: text for name, text in DENSE.items() if name != left_out})
    with pytest.raises(NotFoundError, match=f"lacks {named}"):
        inspected(tmp_path)


def test_missing_shards_are_named(tmp_path: Path) -> None:
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    fill(tmp_path, {"config.json": "{}", "tokenizer.json": "{}", shards["a"]: "w"})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(NotFoundError, match=r"lacks model-00002-of-00002\.safetensors"):
        inspected(tmp_path)
    index.write_text("{")
    with pytest.raises(FailedPreconditionError, match=r"index.json is damaged"):
        inspected(tmp_path)


def test_an_empty_folder_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"model.safetensors .*model.onnx.*\.gguf"):
        inspected(tmp_path)


def test_a_pointer_of_git_lfs_is_recognised(tmp_path: Path) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"
    fill(tmp_path, DENSE | {"model.safetensors": pointer})
    with pytest.raises(FailedPreconditionError, match="git lfs pull"):
        inspected(tmp_path)


def test_gguf_files(tmp_path: Path) -> None:
    fill(tmp_path, {"a.gguf": "GGUF..."})
    assert inspected(tmp_path).gguf_file == "a.gguf"
    assert inspected(tmp_path / "a.gguf") == ModelFiles("m", tmp_path, "a.gguf", None)
    fill(tmp_path, {"b.gguf": "GGUF..."})
    with pytest.raises(NotFoundError, match=r"a\.gguf, b\.gguf"):
        inspected(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "error", "named"),
    [
        ("a.gguf", "<html>", FailedPreconditionError, "not a GGUF file"),
        ("a-00001-of-00003.gguf", "GGUF", UnsupportedModelError, "llama-gguf-split"),
        ("a.txt", "GGUF", UnsupportedModelError, "not a model file"),
        ("a.bin", "GGUF", UnsupportedModelError, "pickle"),
        ("a.pt", "GGUF", UnsupportedModelError, "pickle"),
    ],
)
def test_files_that_are_no_models(
    tmp_path: Path, name: str, text: str, error: type[AnydraftError], named: str
) -> None:
    fill(tmp_path, {name: text})
    with pytest.raises(error, match=named):
        inspected(tmp_path / name)


@pytest.mark.parametrize(
    ("precision", "file"),
    [
        ("int4", "onnx/model_q4.onnx"),
        ("int8", "onnx/model_int8.onnx"),
        ("fp32", "onnx/model.onnx"),
        (None, "onnx/model.onnx"),
    ],
)
def test_the_onnx_file_of_a_precision(tmp_path: Path, precision: str | None, file: str) -> None:
    fill(tmp_path, TRANSFORMERS_JS)
    assert choose_onnx(TRANSFORMERS_JS, precision) == file
    found = inspected(tmp_path, "onnx", precision)
    assert (found.folder, found.onnx_file) == (tmp_path, file)
    assert inspected(tmp_path, "dense").onnx_file is None


def test_onnxruntime_genai_keeps_its_tokenizer_beside_the_decoder(tmp_path: Path) -> None:
    found = inspected(fill(tmp_path, GENAI), "dense", "int4")
    assert found.folder == tmp_path / "cpu_and_mobile/cpu-int4-rtn-block-32"
    assert found.onnx_file == "model.onnx"


def test_an_onnx_file_may_be_named(tmp_path: Path) -> None:
    fill(tmp_path, TRANSFORMERS_JS)
    found = inspected(tmp_path / "onnx/model_int8.onnx")
    assert (found.folder, found.onnx_file) == (tmp_path, "onnx/model_int8.onnx")


def test_an_onnx_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"lacks tokenizer.json"):
        inspected(fill(tmp_path, ["model.onnx"]))


def test_what_belongs_to_a_decoder() -> None:
    assert onnx_companions(TRANSFORMERS_JS, "onnx/model_q4.onnx") == [
        "config.json",
        "tokenizer.json",
        "onnx/model_q4.onnx",
        "onnx/model_q4.onnx_data",
        "onnx/model_q4.onnx_data_1",
    ]
    assert onnx_companions(GENAI, GENAI[1]) == GENAI[1:5]


def test_what_belongs_to_a_dense_model() -> None:
    names = [
        "config.json",
        "modeling.py",
        "pytorch_model.bin",
        "README.md",
        "onnx/m.onnx",
        "model.safetensors",
    ]
    assert dense_companions(names) == ["config.json", "modeling.py", "model.safetensors"]
    assert dense_companions(names[:-1]) == []


@pytest.mark.parametrize("pickle", ["pytorch_model.bin", "consolidated.00.pth", "model.ckpt"])
def test_pickled_weights_are_refused_in_one_line(pickle: str, tmp_path: Path) -> None:
    fill(tmp_path, ["config.json", "tokenizer.json", pickle])
    with pytest.raises(UnsupportedModelError, match=rf"{pickle}.*safetensors") as caught:
        inspected(tmp_path)
    assert caught.value.reason == "PICKLED_WEIGHTS"
    assert "\n" not in str(caught.value)
    fill(tmp_path, ["model.safetensors"])
    assert inspected(tmp_path).folder == tmp_path


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("org/repo@main", "org/repo@main"),
        ("smollm2-135m-instruct", "smollm2-135m-instruct"),
        ("/secret/place/llama.Q4_K.gguf", "llama.Q4_K"),
        ("./here/my-model", "my-model"),
        ("~/models/tiny.onnx", "tiny"),
        ("/", "model"),
    ],
)
def test_what_others_may_see_of_a_name(name: str, shown: str) -> None:
    assert display_name(name) == shown


def test_a_folder_here_is_shown_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fill(tmp_path / "org" / "mine", DENSE)
    monkeypatch.chdir(tmp_path)
    assert display_name("org/mine") == "mine"
    monkeypatch.chdir(folder)
    assert display_name(".") == "mine"


MERGED = [
    "tokenizer.json",
    "onnx/decoder_model.onnx",
    "onnx/decoder_model_quantized.onnx",
    "onnx/decoder_model_merged.onnx",
    "onnx/decoder_model_merged_quantized.onnx",
    "onnx/decoder_with_past_model.onnx",
]


@pytest.mark.parametrize(
    ("precision", "file"),
    [
        ("int4", "onnx/decoder_model_merged.onnx"),
        ("int8", "onnx/decoder_model_merged_quantized.onnx"),
        ("fp32", "onnx/decoder_model_merged.onnx"),
    ],
)
def test_a_merged_decoder_beats_those_of_one_call(precision: str, file: str) -> None:
    assert choose_onnx(MERGED, precision) == file


def test_the_tokenizer_may_lie_far_above(tmp_path: Path) -> None:
    decoder = "cpu_and_mobile/cpu-int4-rtn-block-32-acc-level-4/model.onnx"
    files = [decoder, "tokenizer.json", "cpu_and_mobile/config.json"]
    fill(tmp_path, files)
    for path, precision in ((tmp_path, "int4"), (tmp_path / decoder, None)):
        found = inspected(path, "onnx", precision)
        assert (found.folder, found.onnx_file) == (tmp_path, decoder)
    assert onnx_companions(files, decoder) == files


def test_genai_config_names_the_decoder(tmp_path: Path) -> None:
    fill(tmp_path, ["model.onnx", "text.onnx", "tokenizer.json"])
    named = {"model": {"decoder": {"filename": "text.onnx"}}}
    (tmp_path / "genai_config.json").write_text(json.dumps(named))
    assert inspected(tmp_path, "onnx", "int4").onnx_file == "text.onnx"
    assert inspected(tmp_path / "model.onnx").onnx_file == "model.onnx"
