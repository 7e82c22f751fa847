import io
from collections.abc import Iterator

import pytest

from anydraft.cli.main import main
from anydraft.client import Stream
from anydraft.errors import ContextFullError
from anydraft.v1 import server_pb2
from tests.client.fake_node import FakeNode, delta, opened

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def talk(node: FakeNode, monkeypatch: pytest.MonkeyPatch):
    """Runs `chat` with these lines typed; returns its exit code."""

    def talk(*lines: str, flags: tuple[str, ...] = ()) -> int:
        typed = "".join(f"{line}\n" for line in lines)
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        return main(["chat", "--server", node.address, *flags])

    return talk


def _messages(node: FakeNode, index: int) -> list[tuple[str, str]]:
    messages = node.requests[index].spec.prompt.messages.messages
    return [(message.role, message.content) for message in messages]


def test_the_conversation_grows(talk, node: FakeNode, capsys: Capture) -> None:
    assert talk("Hi", "", "And?", flags=("--system", "Be brief", "--temperature", "0")) == 0
    assert _messages(node, 0) == [("system", "Be brief"), ("user", "Hi")]
    assert _messages(node, 1) == [
        ("system", "Be brief"),
        ("user", "Hi"),
        ("assistant", "Hello wörld"),
        ("user", "And?"),
    ]
    assert node.requests[0].spec.sampling.HasField("temperature")
    printed = capsys.readouterr()
    assert printed.out.count("Hello wörld\n") == 2
    assert printed.out.startswith("big. /help lists commands.\n")
    assert printed.err == ""


def test_the_target_greets_and_the_assistant_stands_beside_it(
    talk, node: FakeNode, capsys: Capture
) -> None:
    node.info.role = server_pb2.NODE_ROLE_DRAFT
    node.info.assistant = "small"
    assert talk() == 0
    assert capsys.readouterr().out.startswith("big, drafted by small. /help")
    node.info.model = ""
    assert talk() == 0
    assert capsys.readouterr().out.startswith("a target that is not reached yet, drafted by small.")


def test_the_server_may_come_from_the_environment(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi\n"))
    monkeypatch.setenv("ANYDRAFT_SERVER", node.address)
    assert main(["chat"]) == 0
    assert "Hello wörld" in capsys.readouterr().out


def test_lines_that_are_no_text_do_not_end_it(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = io.TextIOWrapper(io.BytesIO(b"a\xffb\n"), encoding="utf-8")
    monkeypatch.setattr("sys.stdin", typed)
    assert main(["chat", "--server", node.address]) == 0
    assert _messages(node, 0) == [("user", "a\ufffdb")]


def test_commands(talk, node: FakeNode, capsys: Capture) -> None:
    assert talk("/help", "Hi", "/reset", "/what", "Again", "/exit", "Never") == 0
    assert [_messages(node, index) for index in range(2)] == [[("user", "Hi")], [("user", "Again")]]
    assert len(node.requests) == 2
    printed = capsys.readouterr().out
    assert "/reset  forget" in printed
    assert "no command /what" in printed


def test_reset_keeps_the_system_message(talk, node: FakeNode) -> None:
    talk("Hi", "/reset", "Again", flags=("--system", "Be brief"))
    assert _messages(node, 1) == [("system", "Be brief"), ("user", "Again")]


def test_an_error_ends_the_answer_only(talk, node: FakeNode, capsys: Capture) -> None:
    node.fail(ContextFullError("full: start over", reason="FULL"))
    assert talk("Hi", "Again") == 0
    assert _messages(node, 1) == [("user", "Again")]
    assert capsys.readouterr().err == "anydraft: full: start over\n" * 2


def test_ctrl_c_ends_the_answer_only(
    talk, node: FakeNode, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was said of the answer stays; the server sees that nobody listens any more."""
    node.hang(opened(), delta("Hel", 1))
    read = Stream.__next__
    was_interrupted = False

    def interrupt_once(stream: Stream):
        nonlocal was_interrupted
        if node.requests and stream._assembler._events and not was_interrupted:
            was_interrupted = True
            raise KeyboardInterrupt
        return read(stream)

    def then_answer() -> Iterator[str]:
        yield "Hi"
        assert node.ended.wait(5)
        node.answer(opened(), delta("yes", 1))
        yield "Again"
        yield "/exit"

    typed = then_answer()
    monkeypatch.setattr(Stream, "__next__", interrupt_once)
    monkeypatch.setattr("builtins.input", lambda prompt="": next(typed))
    assert talk() == 0
    assert _messages(node, 1) == [("user", "Hi"), ("assistant", "Hel"), ("user", "Again")]
    assert "Hel (stopped)\n" in capsys.readouterr().out


def test_ctrl_c_at_the_prompt_is_harmless(talk, monkeypatch: pytest.MonkeyPatch) -> None:
    presses = iter([KeyboardInterrupt, EOFError])

    def press(prompt: str = "") -> str:
        raise next(presses)

    monkeypatch.setattr("builtins.input", press)
    assert talk() == 0


def test_a_model_without_a_template_is_announced(talk, node: FakeNode, capsys: Capture) -> None:
    node.info.has_chat_template = False
    assert talk() == 0
    assert "no chat template" in capsys.readouterr().out


def test_stats(talk, capsys: Capture) -> None:
    assert talk("Hi", flags=("--stats",)) == 0
    assert "tokens/s" in capsys.readouterr().err


def test_nobody_there(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    assert main(["chat", "--server", "127.0.0.1:1"]) == 1
    assert "cannot connect" in capsys.readouterr().err
