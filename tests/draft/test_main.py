"""The command: one line for what is wrong, one when it is ready."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from draft_node import __main__ as command


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "--model"),
        (["--model", "no-such-assistant"], "no-such-assistant"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str],
    problem: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "set_up_logging", lambda level: None)
    assert command.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("anydraft-draft: ")
    assert problem in line


def test_unknown_flags_exit_with_code_2() -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--no-such-flag"])


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_says_when_it_is_ready_and_stops_on_a_signal(number: signal.Signals) -> None:
    arguments = ["--engine", "lookup", "--listen", "127.0.0.1:0", "--verify", "127.0.0.1:9"]
    process = subprocess.Popen(
        [sys.executable, "-m", "draft_node", *arguments], stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if "ready on" in line)
        process.send_signal(number)
        assert process.wait(timeout=20) == 0
    text = ready.partition("anydraft-draft ready on ")[2]
    address, _, rest = text.partition(" ")
    assert address.startswith("127.0.0.1:")
    assert int(address.rpartition(":")[2]) > 0
    assert rest == "(assistant prompt lookup, engine prompt lookup, verify 127.0.0.1:9)\n"


def test_no_engine_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys, draft_node.__main__ as m; m.parser();"
        "print([n for n in ('torch', 'transformers', 'onnxruntime') if n in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
