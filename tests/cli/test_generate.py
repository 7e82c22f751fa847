import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from anydraft.cli.main import main
from anydraft.errors import ContextFullError, UnavailableError
from anydraft.v1 import result_pb2
from tests.client.fake_node import SEED, FakeNode, delta, finished, opened

Capture = pytest.CaptureFixture[str]


def _stdin(monkeypatch: pytest.MonkeyPatch, raw: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))


@pytest.mark.parametrize("flags", [[], ["--no-stream"]])
def test_prints_the_answer_and_no_more(node: FakeNode, capsys: Capture, flags: list[str]) -> None:
    assert main(["generate", "--server", node.address, "--prompt", "Hi", *flags]) == 0
    assert capsys.readouterr() == ("Hello wörld", "")


def test_text_is_printed_as_it_comes(node: FakeNode) -> None:
    node.hang(opened(), delta("Hel", 1))
    command = [sys.executable, "-m", "anydraft.cli.main", "generate", "--server", node.address]
    with subprocess.Popen([*command, "--prompt", "Hi"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(3) == b"Hel"
        assert not node.ended.is_set()
        node.ended.set()


def test_json(node: FakeNode, capsys: Capture) -> None:
    assert main(["generate", "--server", node.address, "--prompt", "Hi", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert result["text"] == "Hello wörld"
    assert result["token_ids"] == [1, 2, 3, 4]
    assert (result["finish_reason"], result["stop"]) == ("eos", None)
    assert (result["seed"], result["model"]) == (SEED, "big")
    assert result["stats"]["acceptance_rate"] == 0.75
    assert result["stats"]["sent_bytes"] == 50
    assert "logprobs" not in result


def test_json_with_logprobs(node: FakeNode, capsys: Capture) -> None:
    entry = result_pb2.TokenLogprobs(logprob=-0.5)
    node.answer(opened(), delta("a", 1, logprobs=[entry]), finished())
    flags = ["--json", "--logprobs", "0"]
    assert main(["generate", "--server", node.address, "--prompt", "Hi", *flags]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["logprobs"] == [{"token_id": 1, "logprob": -0.5, "top": []}]
    assert node.requests[0].spec.HasField("logprobs")


def test_logprobs_need_json(capsys: Capture) -> None:
    assert main(["generate", "--server", "a:1", "--prompt", "Hi", "--logprobs", "1"]) == 2
    assert "add --json" in capsys.readouterr().err


def test_stats(node: FakeNode, capsys: Capture) -> None:
    assert main(["generate", "--server", node.address, "--prompt", "Hi", "--stats"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("4 tokens in ")
    assert "75% of 4 draft tokens accepted" in line


def test_every_sampling_flag_arrives(node: FakeNode, capsys: Capture) -> None:
    flags = shlex.split(
        "--max-new-tokens 5 --temperature 0.5 --top-k 3 --top-p 0.75 --min-p 0.25 "
        "--repetition-penalty 1.5 --presence-penalty -1 --frequency-penalty 2 --seed 7 "
        "--logit-bias 3=-1.5 --logit-bias 4=2 --stop END --stop . --ignore-eos --model big"
    )
    assert main(["generate", "--server", node.address, "--prompt", "Hi", *flags]) == 0
    spec = node.requests[0].spec
    sampling = {field.name: value for field, value in spec.sampling.ListFields()}
    assert dict(sampling.pop("logit_bias")) == {3: -1.5, 4: 2.0}
    assert sampling == {
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.75,
        "min_p": 0.25,
        "repetition_penalty": 1.5,
        "presence_penalty": -1.0,
        "frequency_penalty": 2.0,
        "seed": 7,
    }
    assert (spec.stop.max_new_tokens, list(spec.stop.stop)) == (5, ["END", "."])
    assert spec.stop.ignore_eos
    assert spec.model == "big"


def test_no_flag_means_the_servers_default(node: FakeNode) -> None:
    assert main(["generate", "--server", node.address, "--prompt", "Hi"]) == 0
    spec = node.requests[0].spec
    assert not spec.sampling.ListFields()
    assert not spec.stop.ListFields()
    assert not spec.model
    assert not spec.HasField("logprobs")


def test_prompt_from_stdin(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    _stdin(monkeypatch, "zwö\r\n".encode())
    assert main(["generate", "--server", node.address, "-"]) == 0
    assert node.requests[0].spec.prompt.text == "zwö\r\n"


def test_prompt_from_a_file(node: FakeNode, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes(b"from a file\n")
    assert main(["generate", "--server", node.address, "--prompt-file", str(path)]) == 0
    assert node.requests[0].spec.prompt.text == "from a file\n"


def test_messages(node: FakeNode) -> None:
    flags = ["--message", "system=Be brief", "--message", "user=1+1=?"]
    assert main(["generate", "--server", node.address, *flags]) == 0
    messages = node.requests[0].spec.prompt.messages.messages
    assert [(m.role, m.content) for m in messages] == [("system", "Be brief"), ("user", "1+1=?")]


def test_chat_wraps_the_prompt(node: FakeNode) -> None:
    assert main(["generate", "--server", node.address, "--prompt", "Hi", "--chat"]) == 0
    (message,) = node.requests[0].spec.prompt.messages.messages
    assert (message.role, message.content) == ("user", "Hi")


@pytest.mark.parametrize("words", [["Hi you"], ["--prompt", "Hi you"]])
def test_a_prompt_may_stand_alone(node: FakeNode, words: list[str]) -> None:
    assert main(["generate", "--server", node.address, *words]) == 0
    assert node.requests[0].spec.prompt.text == "Hi you"


def test_the_server_may_come_from_the_environment(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("ANYDRAFT_SERVER", "nowhere")
    assert main(["generate", "Hi", "--server", node.address]) == 0
    capsys.readouterr()
    assert main(["generate", "Hi"]) == 2
    _assert_one_error_line(capsys, "ANYDRAFT_SERVER: server address 'nowhere' has no port")
    monkeypatch.setenv("ANYDRAFT_SERVER", node.address)
    assert main(["generate", "Hi"]) == 0
    capsys.readouterr()
    monkeypatch.delenv("ANYDRAFT_SERVER")
    assert main(["generate", "Hi"]) == 2
    _assert_one_error_line(capsys, "give --server HOST:PORT, or set ANYDRAFT_SERVER")


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ([], "there is no prompt: give it in quotes"),
        (["--prompt", ""], "the prompt is empty"),
        ([""], "the prompt is empty"),
        (["Write", "it's", "done"], "put quotes around it, 'Write it'\"'\"'s done'"),
        (["Hi", "--prompt", "Hi"], "'Hi' is a second prompt"),
        (["-", "--prompt-file", "x"], "'-' is a second prompt"),
        (["--message", "user=Hi", "--chat"], "leave --chat out"),
        (["--prompt-file", "/no/such/file"], "cannot read /no/such/file"),
        (["--prompt-file", "/"], "cannot read / (Is a directory)"),
    ],
)
def test_bad_input(flags: list[str], shown: str, capsys: Capture) -> None:
    assert main(["generate", "--server", "127.0.0.1:1", *flags]) == 2
    _assert_one_error_line(capsys, shown)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        (["--prompt", "a", "--prompt-file", "b"], "not allowed with"),
        (["--message", "no role"], "write ROLE=TEXT"),
        (["--prompt", "a", "--logit-bias", "x=1"], "write ID=BIAS"),
        (["--prompt", "a", "--logit-bias", "1"], "write ID=BIAS"),
    ],
)
def test_bad_arguments(flags: list[str], shown: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["generate", "--server", "127.0.0.1:1", *flags])
    assert caught.value.code == 2
    _assert_one_error_line(capsys, shown)


def test_an_empty_stdin(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    _stdin(monkeypatch, b"")
    assert main(["generate", "--server", "127.0.0.1:1", "-"]) == 2
    _assert_one_error_line(capsys, "the prompt is empty")


def test_a_prompt_that_is_no_text(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    _stdin(monkeypatch, b"ab\xff")
    assert main(["generate", "--server", "127.0.0.1:1", "-"]) == 2
    _assert_one_error_line(capsys, "stdin is no UTF-8 text at byte 2")


def test_nobody_there(capsys: Capture) -> None:
    assert main(["generate", "--server", "127.0.0.1:1", "--prompt", "Hi"]) == 1
    _assert_one_error_line(capsys, "cannot connect to 127.0.0.1:1")


def test_an_error_after_text(node: FakeNode, capsys: Capture) -> None:
    node.fail(ContextFullError("too long: shorten\nthe prompt", reason="FULL"), delta("Hel", 1))
    assert main(["generate", "--server", node.address, "--prompt", "Hi"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "Hel"
    assert printed.err == "anydraft: too long: shorten the prompt\n"


def test_a_timeout(node: FakeNode, capsys: Capture) -> None:
    node.hang(opened())
    flags = ["--prompt", "Hi", "--timeout", "0.3"]
    assert main(["generate", "--server", node.address, *flags]) == 1
    _assert_one_error_line(capsys, "did not finish in time")


def test_a_draining_server(node: FakeNode, capsys: Capture) -> None:
    node.fail(UnavailableError("going away: ask another", reason="DRAINING"))
    assert main(["generate", "--server", node.address, "--prompt", "Hi"]) == 1
    _assert_one_error_line(capsys, "going away")


def _assert_one_error_line(capsys: Capture, shown: str) -> None:
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("anydraft: ")
    assert shown in line
