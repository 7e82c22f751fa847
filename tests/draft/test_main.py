"""The command: one line for what is wrong, one when it is ready."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from draft_node import __main__ as command

LOOKUP = ["--engine", "lookup"]


@pytest.mark.parametrize(
    ("arguments", "problem", "fix"),
    [
        ([*LOOKUP, "--verify", "nowhere"], "nowhere", "HOST:PORT"),
        ([*LOOKUP, "--listen", "http://x"], "http://x", "HOST:PORT"),
        ([], "needs an assistant", "--model"),
        (["--model", "no-such-assistant"], "no-such-assistant", "short name"),
        (["smollm2-135m-instruct"], "no flag", "--model smollm2-135m-instruct"),
        ([*LOOKUP, "--max-draft", "0"], "--max-draft", "1 or more"),
        ([*LOOKUP, "--threads", "-1"], "--threads", "1 or more"),
        ([*LOOKUP, "--threads", "two"], "--threads", "1 or more"),
        ([*LOOKUP, "--min-probability", "nan"], "--min-probability", "from 0 to 1"),
        ([*LOOKUP, "--min-probability", "30"], "--min-probability", "from 0 to 1"),
        ([*LOOKUP, "--grace", "-1"], "--grace", "0 or more"),
        ([*LOOKUP, "--threds", "2"], "--threds", "did you mean --threads?"),
        (["--engine", "onyx", "--model", "m"], "onyx", "did you mean onnx?"),
        (["--model", "m", "--device-map", "cpu"], "--engine onnx", "drop it"),
        ([*LOOKUP, "--no-lookup"], "leave no drafter", "drop one"),
        (["--model", "m", "--no-lookup", "--lookup-meanwhile"], "by lookup", "drop --no-lookup"),
        (["--model", ".", "--precision", "int3"], "int3", "int4"),
    ],
)
def test_bad_input_is_one_line_that_names_the_fix(
    arguments: list[str],
    problem: str,
    fix: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "set_up_logging", lambda level: None)
    listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
    try:
        code = command.main([*arguments, *listen])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("anydraft-draft: ")
    assert problem in line
    assert fix in line


@pytest.mark.parametrize(
    ("arguments", "shares"),
    [
        (["--verify", "127.0.0.1:9"], True),
        (["--verify", "gpu.example:9"], False),
        (["--verify", "127.0.0.1:9", "--same-machine", "no"], False),
        (["--verify", "gpu.example:9", "--same-machine", "yes"], True),
    ],
)
def test_a_target_beside_it_is_known_by_its_address(arguments: list[str], shares: bool) -> None:
    args = command.parser().parse_args([*LOOKUP, *arguments])
    assert command._settings(args).shares_machine is shares


def test_help_shows_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for flag in ("verify", "listen", "engine", "precision", "threads", "max-draft", "grace"):
        described = text.rpartition(f" --{flag} ")[2].partition(" --")[0]
        assert "(default: " in described, flag


@pytest.mark.processes
def test_a_signal_ends_a_node_that_loads() -> None:
    """Nothing is on its standard input, so that loading never ends."""
    code = (
        "import sys, draft_node.load, draft_node.__main__ as m;"
        "draft_node.load.load_drafter = lambda settings: sys.stdin.read();"
        "sys.exit(m.main(['--model', 'm', '--listen', '127.0.0.1:0']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stderr is not None
        next(line for line in process.stderr if "loading" in line)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0


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
