import json
from pathlib import Path
from typing import Any

import pytest

from anydraft.cli import doctor_install, doctor_machine
from anydraft.cli.doctor_server import server_findings
from anydraft.cli.findings import Finding
from anydraft.cli.main import main
from tests.client.fake_node import FakeNode

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def _no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting torch takes seconds; one test is enough for that."""
    monkeypatch.setattr(
        doctor_install, "_TORCH", 'print(\'{"version": "1", "devices": ["x"], "threads": 3}\')'
    )
    monkeypatch.setattr(doctor_install, "_ONNXRUNTIME", "raise RuntimeError('wrong wheel')")


def _report(capsys: Capture, *flags: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", *flags])
    report = json.loads(capsys.readouterr().out)
    return code, report


def _named(report: dict[str, Any], name: str) -> dict[str, Any]:
    (finding,) = (finding for finding in report["findings"] if finding["name"] == name)
    return finding


def test_engines_start_here(capsys: Capture) -> None:
    code, report = _report(capsys)
    assert (code, report["ok"]) == (0, True)
    assert "threads" in _named(report, "torch")["detail"]
    assert "CPUExecutionProvider" in _named(report, "onnxruntime")["detail"]
    assert "grpcio" in _named(report, "packages")["detail"]
    assert _named(report, "extra [verify]")["detail"] == "installed"
    assert "cores" in _named(report, "processor")["detail"]


@pytest.mark.usefixtures("_no_engines")
def test_what_fails_is_shown_with_its_fix(capsys: Capture) -> None:
    code, report = _report(capsys)
    assert (code, report["ok"]) == (1, False)
    broken = _named(report, "onnxruntime")
    assert broken["state"] == "fail"
    assert broken["detail"] == "does not start: RuntimeError: wrong wheel"
    assert "pip install" in broken["fix"]
    assert _named(report, "torch")["detail"] == "1 on x, 3 threads"
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    shown = next(n for n, line in enumerate(lines) if line.startswith("fail  onnxruntime: "))
    assert lines[shown + 1].startswith("      -> pip install")


def test_an_engine_that_kills_its_process() -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
    assert doctor_install._run_probe(code) == "was killed by SIGILL while it started"


def test_an_incomplete_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    there = doctor_install._installed
    monkeypatch.setattr(
        doctor_install, "_installed", lambda name: None if name == "tokenizers" else there(name)
    )
    finding = doctor_install._extra("draft")
    assert (finding.state, finding.detail) == ("fail", "incomplete: tokenizers missing")
    monkeypatch.setattr(doctor_install, "_installed", lambda name: None)
    assert doctor_install._extra("draft").state == "ok"


def test_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags\t\t: fpu avx2 avx512f\n\nflags : other\n")
    assert doctor_machine._cpu_flags(cpuinfo) == {"fpu", "avx2", "avx512f"}
    assert doctor_machine._cpu_flags(tmp_path / "missing") == frozenset()
    monkeypatch.setattr(doctor_machine, "_cpu_flags", lambda path: frozenset({"sse2"}))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert doctor_machine._processor().state == "warn"


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a").write_bytes(b"x" * 1_500_000)
    monkeypatch.setenv("ANYDRAFT_CACHE", str(tmp_path))
    assert "1.5 MB" in doctor_machine._cache_folder().detail
    monkeypatch.setattr(doctor_machine, "_LOW_SPACE_BYTES", 10**18)
    assert doctor_machine._cache_folder().state == "warn"
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert doctor_machine._cache_folder().state == "fail"


def test_a_cache_folder_that_does_not_exist_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYDRAFT_CACHE", str(tmp_path / "not" / "yet"))
    assert doctor_machine._cache_folder().state in ("ok", "warn")
    assert not (tmp_path / "not").exists()


def _states(findings: list[Finding]) -> list[str]:
    return [finding.state for finding in findings]


def test_a_healthy_server(node: FakeNode) -> None:
    node.info.verify_address = "10.0.0.1:5"
    ready, distance, identity = server_findings(node.address)
    assert _states([ready, distance, identity]) == ["ok"] * 3
    assert "round trip" in distance.detail
    assert "verify node, anydraft 9.9, big, scripted, 128 tokens of context" in identity.detail
    assert "verified by 10.0.0.1:5" in identity.detail


def test_a_server_that_is_loading(node: FakeNode) -> None:
    node.set_ready(False)
    assert _states(list(server_findings(node.address))) == ["warn", "ok", "ok"]


def test_a_server_of_another_revision(node: FakeNode) -> None:
    node.info.protocol_revision = 99
    finding = list(server_findings(node.address))[-1]
    assert finding.state == "fail"
    assert "protocol revision 99" in finding.detail


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
def test_a_server_that_cannot_be_reached(address: str) -> None:
    (finding,) = server_findings(address)
    assert finding.state == "fail"
    assert finding.fix is not None


@pytest.mark.usefixtures("_no_engines")
def test_servers_are_part_of_the_report(node: FakeNode, capsys: Capture) -> None:
    _, report = _report(capsys, "--server", node.address, "--server", "127.0.0.1:1")
    names = [finding["name"] for finding in report["findings"]]
    assert names[-4:] == [node.address] * 3 + ["127.0.0.1:1"]
