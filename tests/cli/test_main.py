"""What every command shares: help, version, exit codes, signals and pipes."""

import contextlib
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
from typing import NoReturn

import pytest

from anydraft.cli import generate
from anydraft.cli.main import main
from anydraft.version import VERSION
from tests.client.fake_node import FakeNode, delta, finished, opened

COMMAND = [sys.executable, "-m", "anydraft.cli.main"]
Capture = pytest.CaptureFixture[str]


def test_help_lists_the_commands_and_imports_none_of_them() -> None:
    code = (
        "import sys; from anydraft.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as end: code = end.code\n"
        "print(code, [name for name in ('grpc', 'torch', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == "0 []"
    for name in ("generate", "chat", "models", "demo", "doctor"):
        assert any(line.split()[:1] == [name] for line in lines)


@pytest.mark.parametrize("command", ["generate", "chat", "models", "demo", "doctor"])
def test_every_command_has_help(command: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: anydraft {command}" in capsys.readouterr().out


def test_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"anydraft {VERSION}\n"


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["--no-such-flag"]])
def test_bad_arguments_take_one_line(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("anydraft: ")
    assert "--help)" in line


def _raise_value_error(_: object) -> NoReturn:
    raise ValueError("two\nlines")


def test_a_bug_takes_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(generate, "run", _raise_value_error)
    monkeypatch.delenv("ANYDRAFT_DEBUG", raising=False)
    assert main(["generate", "--server", "a:1", "--prompt", "Hi"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("anydraft: ValueError: two lines")


def test_debugging_shows_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "run", _raise_value_error)
    monkeypatch.setenv("ANYDRAFT_DEBUG", "1")
    with pytest.raises(ValueError, match="two"):
        main(["generate", "--server", "a:1", "--prompt", "Hi"])


# A test run that was started in the background ignores Ctrl-C, and so would its children.
HEARS_CTRL_C = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from anydraft.cli.main import main; sys.exit(main())"
)


def test_ctrl_c_is_quiet_and_cancels_the_call(node: FakeNode) -> None:
    node.hang(opened(), delta("Hel", 1))
    arguments = ["generate", "--server", node.address, "--prompt", "Hi"]
    command = [sys.executable, "-c", HEARS_CTRL_C, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(3) == b"Hel"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (130, b"")
    assert node.ended.wait(5)


def test_a_broken_pipe_is_quiet(node: FakeNode) -> None:
    node.answer(opened(), *[delta("x" * 10_000, 1)] * 100, finished())
    arguments = ["generate", "--server", node.address, "--prompt", "Hi"]
    with subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1) == b"x"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 141


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        ("generate Hi >&-", 0, ""),
        ("generate - <&-", 2, "the prompt is empty"),
        ("chat <&-", 0, ""),
        ("generate Hi 2>&-", 0, ""),
        ("generate Hi >/dev/full", 1, "the output: No space left on device"),
    ],
)
def test_streams_that_are_closed_or_full(
    node: FakeNode, arguments: str, code: int, shown: str
) -> None:
    line = f"{shlex.join(COMMAND)} {arguments}"
    environment = os.environ | {"ANYDRAFT_SERVER": node.address}
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, env=environment)
    assert done.returncode == code, done.stderr
    assert shown in done.stderr
    assert len(done.stderr.splitlines()) == bool(shown)


def test_a_broken_pipe_ends_a_chat(node: FakeNode) -> None:
    with subprocess.Popen(
        [*COMMAND, "chat", "--server", node.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout and process.stdin and process.stderr  # noqa: PT018
        assert process.stdout.readline() == b"big. /help lists commands.\n"
        process.stdout.close()
        process.stdin.write(b"Hi\n" * 3)
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(20) == 141


OWNS_ITS_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "


def _read(master: int, pressed: bytes) -> bytes:
    """What is shown next. Ctrl-C and Ctrl-D are pressed again when nothing comes of them: Python
    does not hear a signal that comes just before it waits for a line; a user presses again, too."""
    while not select.select([master], [], [], 10)[0]:
        if pressed in (b"\x03", b"\x04"):
            os.write(master, pressed)
    return os.read(master, 4096)


def _on_a_terminal(arguments: list[str], *keys: tuple[str, bytes]) -> tuple[int, str]:
    """Runs `anydraft` on a terminal; once a text has been shown, its key is pressed."""
    master, slave = pty.openpty()
    command = [sys.executable, "-c", OWNS_ITS_TERMINAL + HEARS_CTRL_C, *arguments]
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    ) as process:
        os.close(slave)
        shown, pressed = "", b""
        for awaited, key in keys:
            position = len(shown)
            while awaited not in shown[position:]:
                shown += _read(master, pressed).decode()
            os.write(master, key)
            pressed = key
        with contextlib.suppress(OSError):  # how Linux tells the end of a terminal
            while more := _read(master, pressed):
                shown += more.decode()
        os.close(master)
    return process.returncode, shown


def test_a_chat_on_a_terminal(node: FakeNode) -> None:
    """Ctrl-C ends the answer, then clears the line; Ctrl-D leaves."""
    node.hang(opened(), delta("Hel", 1))
    keys = [("> ", b"Hi\r"), ("Hel", b"\x03"), ("> ", b"\x03"), ("> ", b"\x04")]
    code, shown = _on_a_terminal(["chat", "--server", node.address], *keys)
    assert code == 0
    assert "(stopped)" in shown
    assert "Traceback" not in shown


def test_ctrl_c_while_a_prompt_is_typed(node: FakeNode) -> None:
    keys = [("then Ctrl-D", b"Hello\r"), ("Hello", b"\x03")]
    code, shown = _on_a_terminal(["generate", "-", "--server", node.address], *keys)
    assert code == 130
    assert "Traceback" not in shown


def test_text_beyond_the_terminals_encoding_is_no_error(node: FakeNode) -> None:
    node.answer(opened(), delta("a→b", 1), finished())
    arguments = ["generate", "--server", node.address, "--prompt", "Hi"]
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-m", "anydraft.cli.main", *arguments],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"},
    )
    assert (done.returncode, done.stdout) == (0, b"a?b"), done.stderr
