import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health, health_pb2_grpc

from anydraft.cli import doctor_install, doctor_machine, doctor_server
from anydraft.cli.doctor_server import server_findings
from anydraft.cli.findings import Finding
from anydraft.cli.main import main
from anydraft.errors import (
    AnydraftError,
    FailedPreconditionError,
    InternalError,
    UnavailableError,
)
from anydraft.v1 import server_pb2
from tests.client.fake_node import FakeNode, opened

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def _no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting torch takes seconds; one test is enough for that."""
    monkeypatch.setattr(
        doctor_install,
        "_TORCH",
        'print(\'{"version": "1", "devices": ["x"], "threads": 3, "cuda": 0}\')',
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
    identity, distance, ready = server_findings(node.address)
    assert _states([identity, distance, ready]) == ["ok"] * 3
    assert "verify node, anydraft 9.9, big, scripted, 128 tokens of context" in identity.detail
    assert "round trip" in distance.detail
    assert "ready: one token in" in ready.detail
    assert node.requests[0].spec.stop.max_new_tokens == 1


def _as_draft_node(node: FakeNode) -> None:
    node.info.role = server_pb2.NODE_ROLE_DRAFT
    node.info.verify_address = "10.0.0.1:5"
    node.info.assistant = "small"


def test_a_healthy_draft_node(node: FakeNode) -> None:
    _as_draft_node(node)
    identity, _, ready = server_findings(node.address)
    assert "draft node, anydraft 9.9, big" in identity.detail
    assert "drafted by small" in identity.detail
    assert "verified by 10.0.0.1:5" in identity.detail
    assert ready.state == "ok"


@pytest.mark.parametrize(
    ("error", "state", "detail", "fix"),
    [
        (
            UnavailableError(
                "This draft node cannot reach the verify node 10.0.0.1:5. Start one there, or so.",
                reason="VERIFY_NODE_UNREACHABLE",
            ),
            "fail",
            "up, but not ready: This draft node cannot reach the verify node 10.0.0.1:5",
            "Start one there, or so.",
        ),
        (
            FailedPreconditionError(
                "10.0.0.1:5 is no verify node: name one", reason="NOT_A_VERIFY_NODE"
            ),
            "fail",
            "up, but not ready: 10.0.0.1:5 is no verify node",
            "name one",
        ),
        (
            UnavailableError(
                "The verify node 10.0.0.1:5 is loading its model. Wait for it.",
                reason="VERIFY_NODE_NOT_READY",
            ),
            "warn",
            "up, but not ready yet: The verify node 10.0.0.1:5 is loading its model",
            "Wait for it.",
        ),
    ],
)
def test_a_draft_node_that_is_not_ready_says_why(
    node: FakeNode, error: AnydraftError, state: str, detail: str, fix: str
) -> None:
    _as_draft_node(node)
    node.info.model = ""
    node.set_ready(False)
    node.fail(error)
    identity, _, ready = server_findings(node.address)
    assert "target not known yet" in identity.detail
    assert (ready.state, ready.detail, ready.fix) == (state, detail, fix)


def test_a_draft_node_that_answers_nobody_itself(node: FakeNode) -> None:
    _as_draft_node(node)
    node.set_ready(False)
    node.fail(FailedPreconditionError("it only drafts: ask others", reason="NO_VERIFY_NODE"))
    ready = list(server_findings(node.address))[-1]
    assert ready.state == "ok"
    assert "drafts for verify nodes" in ready.detail


def test_a_server_that_is_loading(node: FakeNode) -> None:
    node.set_ready(False)
    node.fail(UnavailableError("it loads its model: wait until it is ready", reason="NOT_READY"))
    identity, distance, ready = server_findings(node.address)
    assert _states([identity, distance, ready]) == ["ok", "ok", "warn"]
    assert ready.detail == "up, but not ready yet: it loads its model"
    assert ready.fix == "wait until it is ready"


def test_a_server_that_answers_before_it_says_so(node: FakeNode) -> None:
    node.set_ready(False)
    assert _states(list(server_findings(node.address))) == ["ok", "ok", "warn"]


def test_a_server_that_says_it_is_ready_and_is_not(node: FakeNode) -> None:
    node.fail(InternalError("the step thread ended: restart the node", reason="STOPPED"))
    finding = list(server_findings(node.address))[-1]
    assert (finding.state, finding.fix) == ("fail", "restart the node")
    assert finding.detail == "says that it is ready, but does not answer: the step thread ended"


def test_a_server_that_does_not_come_to_an_answer(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_server, "_ANSWER_TIMEOUT_S", 0.2)
    node.hang(opened())
    finding = list(server_findings(node.address))[-1]
    assert finding.state == "warn"
    assert finding.detail == "gave no token within 0.2 s"


def test_a_server_of_another_revision(node: FakeNode) -> None:
    node.info.protocol_revision = 99
    identity, _ = server_findings(node.address)
    assert identity.state == "fail"
    assert "protocol revision 99" in identity.detail
    assert not node.requests


def test_something_else_that_listens() -> None:
    """It has health and no generation service."""
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(health.HealthServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        (finding,) = server_findings(f"127.0.0.1:{port}")
    finally:
        server.stop(0).wait()
    assert finding.state == "fail"
    assert finding.fix == "give the address of a draft node or a verify node"


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


@pytest.mark.usefixtures("_no_engines")
def test_the_server_may_come_from_the_environment(
    node: FakeNode, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANYDRAFT_SERVER", node.address)
    _, report = _report(capsys)
    assert [finding["name"] for finding in report["findings"]].count(node.address) == 3


def test_a_file_where_the_cache_folder_should_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        monkeypatch.setenv("ANYDRAFT_CACHE", str(folder))
        finding = doctor_machine._cache_folder()
        assert finding.state == "fail"
        assert str(tmp_path / "file") in finding.detail
        assert "is a file" in finding.detail
        assert "ANYDRAFT_CACHE" in (finding.fix or "")


@pytest.mark.parametrize(
    ("cuda", "smi", "state"),
    [
        (False, "/usr/bin/nvidia-smi", "warn"),
        (True, "/usr/bin/nvidia-smi", "ok"),
        (False, "", "ok"),
    ],
)
def test_a_gpu_that_torch_does_not_see(
    cuda: bool, smi: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"version": "1", "devices": ["x"], "threads": 3, "cuda": cuda}
    monkeypatch.setattr(doctor_install, "_run_probe", lambda code: found)
    monkeypatch.setattr(doctor_install, "which", lambda name: smi or None)
    assert doctor_install._torch().state == state
