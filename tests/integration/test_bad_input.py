"""Bad input gets a clear error with the right status, and the server lives on."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from anydraft import Client
from anydraft.errors import AnydraftError
from anydraft.rpc.status import from_rpc_error
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.generation_pb2 import GenerateRequest
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.prompt_pb2 import (
    ChatMessage,
    ChatMessages,
    GenerationSpec,
    Prompt,
    SamplingParams,
    StopConditions,
)
from anydraft.v1.verification_pb2 import Draft, Open, VerifyRequest
from anydraft.v1.verification_pb2_grpc import VerificationServiceStub
from anydraft.version import PROTOCOL_REVISION
from tests import models_zoo, nodes, tokenizers_zoo
from tests.integration.drafters import RandomDrafter

NAN = float("nan")
WORDS = Prompt(text="hello")


@pytest.fixture(scope="module")
def verify() -> Iterator[str]:
    tokenizer = TextTokenizer(tokenizers_zoo.build("gpt2"))
    model = nodes.served(models_zoo.build("llama"), tokenizer, kv_tokens=1024)
    with nodes.verify_node(model) as address:
        yield address


@pytest.fixture(scope="module", params=["verify", "draft"])
def address(request: pytest.FixtureRequest, verify: str) -> Iterator[str]:
    """The verify node itself, and a draft node in front of it: the same errors."""
    if request.param == "verify":
        yield verify
    else:
        with nodes.draft_node(RandomDrafter(), verify) as draft:
            yield draft


def error_of(address: str, spec: GenerationSpec) -> AnydraftError:
    """Past the SDK, which would find most of these before they are sent."""
    with grpc.insecure_channel(address) as channel:
        stub = GenerationServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            list(stub.Generate(GenerateRequest(spec=spec), timeout=60))
        return from_rpc_error(caught.value)


@pytest.mark.parametrize(
    ("spec", "status", "says"),
    [
        (GenerationSpec(), "INVALID_ARGUMENT", "prompt"),
        (GenerationSpec(prompt=Prompt(text="")), "INVALID_ARGUMENT", "prompt"),
        (GenerationSpec(prompt=Prompt(messages=ChatMessages())), "INVALID_ARGUMENT", "messages"),
        (
            GenerationSpec(
                prompt=Prompt(messages=ChatMessages(messages=[ChatMessage(content="no role")]))
            ),
            "INVALID_ARGUMENT",
            "role",
        ),
        (GenerationSpec(prompt=Prompt(text="word " * 2000)), "OUT_OF_RANGE", "Shorten"),
        (GenerationSpec(prompt=WORDS, model="other"), "FAILED_PRECONDITION", "serves"),
        *(
            (GenerationSpec(prompt=WORDS, sampling=SamplingParams(**{name: value})), *expected)
            for name, value in [
                ("temperature", -0.1),
                ("temperature", NAN),
                ("temperature", float("inf")),
                ("top_p", 0.0),
                ("top_p", 1.5),
                ("min_p", -0.5),
                ("min_p", 2.0),
                ("repetition_penalty", 0.0),
                ("presence_penalty", 3.0),
                ("frequency_penalty", -2.5),
                ("logit_bias", {1: NAN}),
                ("logit_bias", {-1: 1.0}),
                ("logit_bias", {models_zoo.VOCABULARY: 1.0}),
            ]
            for expected in [("INVALID_ARGUMENT", name)]
        ),
        (
            GenerationSpec(prompt=WORDS, stop=StopConditions(max_new_tokens=0)),
            "INVALID_ARGUMENT",
            "max_new_tokens",
        ),
        (GenerationSpec(prompt=WORDS, stop=StopConditions(stop=[""])), "INVALID_ARGUMENT", "stop"),
        (GenerationSpec(prompt=WORDS, logprobs=10_000), "INVALID_ARGUMENT", "logprobs"),
    ],
    ids=str,
)
def test_a_bad_request_is_refused_by_name(
    address: str, spec: GenerationSpec, status: str, says: str
) -> None:
    error = error_of(address, spec)
    assert error.status.name == status
    assert says in str(error)
    assert error.reason
    with Client(address) as client:
        assert client.generate("still there?", max_new_tokens=3, timeout=60).result().token_ids


def test_a_full_node_asks_to_come_back() -> None:
    tokenizer = TextTokenizer(tokenizers_zoo.build("gpt2"))
    model = nodes.served(models_zoo.build("llama"), tokenizer, max_sessions=2, max_waiting=0)
    with nodes.verify_node(model) as verify, Client(verify) as client:
        endless = [
            client.generate("x", max_new_tokens=500, ignore_eos=True, timeout=60) for _ in range(2)
        ]
        for stream in endless:
            next(iter(stream))
        full = error_of(
            verify, GenerationSpec(prompt=WORDS, stop=StopConditions(max_new_tokens=200))
        )
        assert full.status == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert full.retry_after_s
        for stream in endless:
            stream.close()
        assert client.generate("free again", max_new_tokens=3, timeout=60).result().token_ids


def test_an_absent_verify_node_is_named() -> None:
    with nodes.draft_node(RandomDrafter(), "127.0.0.1:9") as draft:
        error = error_of(draft, GenerationSpec(prompt=WORDS))
    assert error.status == grpc.StatusCode.UNAVAILABLE
    assert "127.0.0.1:9" in str(error)
    assert "--verify" in str(error)


@pytest.mark.parametrize(
    ("requests", "status", "says"),
    [
        ([], "INVALID_ARGUMENT", "open"),
        ([VerifyRequest(draft=Draft(first_piece=1))], "INVALID_ARGUMENT", "open"),
        (
            [VerifyRequest(open=Open(protocol_revision=99, spec=GenerationSpec(prompt=WORDS)))],
            "FAILED_PRECONDITION",
            "same anydraft release",
        ),
        (
            [
                VerifyRequest(
                    open=Open(
                        protocol_revision=PROTOCOL_REVISION,
                        spec=GenerationSpec(
                            prompt=WORDS, stop=StopConditions(max_new_tokens=400, ignore_eos=True)
                        ),
                    )
                )
            ]
            * 2,
            "INVALID_ARGUMENT",
            "draft",
        ),
    ],
    ids=["nothing", "draft first", "another revision", "open twice"],
)
def test_a_stream_that_breaks_the_protocol(
    verify: str, requests: list[VerifyRequest], status: str, says: str
) -> None:
    with grpc.insecure_channel(verify) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            list(VerificationServiceStub(channel).Verify(iter(requests), timeout=60))
        error = from_rpc_error(caught.value)
    assert error.status.name == status
    assert says in str(error)


# Nodes that cannot start.


def start(module: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def assert_one_clear_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("anydraft-")
    for word in words:
        assert word in last


def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.mark.processes
@pytest.mark.parametrize("module", ["verify_node", "draft_node"])
def test_an_unknown_model(module: str) -> None:
    done = start(module, "--model", "no-such-model", "--listen", "127.0.0.1:0")
    assert_one_clear_line(done, "no-such-model", "anydraft models list")


@pytest.mark.processes
def test_missing_weights(target_folder: Path, tmp_path: Path) -> None:
    folder = copy(target_folder, tmp_path)
    (folder / "model.safetensors").unlink()
    done = start("verify_node", "--model", str(folder), "--listen", "127.0.0.1:0")
    assert_one_clear_line(done, "safetensors")


@pytest.mark.processes
def test_a_tokenizer_of_another_model(target_folder: Path, tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = copy(target_folder, tmp_path)
    larger = PreTrainedTokenizerFast(tokenizer_object=tokenizers_zoo.gpt2(900))
    larger.save_pretrained(folder)
    done = start("verify_node", "--model", str(folder), "--listen", "127.0.0.1:0")
    assert_one_clear_line(done, "different models")


@pytest.mark.processes
def test_no_tokenizer(target_folder: Path, tmp_path: Path) -> None:
    folder = copy(target_folder, tmp_path)
    (folder / "tokenizer.json").write_text("{ this is not a tokenizer")
    done = start("verify_node", "--model", str(folder), "--listen", "127.0.0.1:0")
    assert_one_clear_line(done, "tokenizer")


@pytest.mark.processes
def test_recurrent_state(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    models_zoo.build("jamba").save_pretrained(tmp_path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizers_zoo.build("gpt2"))
    tokenizer.save_pretrained(tmp_path)
    done = start("verify_node", "--model", str(tmp_path), "--listen", "127.0.0.1:0")
    assert_one_clear_line(done, "recurrent state")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("module", "args", "word"),
    [
        ("verify_node", ["--model", "x", "--listen", "nowhere"], "HOST:PORT"),
        ("draft_node", ["--model", "x", "--verify", "nowhere"], "HOST:PORT"),
        ("verify_node", ["--model", "x", "--dtype", "int3"], "fp32"),
        ("draft_node", ["--engine", "onnx"], "--model"),
        ("draft_node", ["--engine", "lookup", "--max-draft", "0"], "--max-draft"),
    ],
)
def test_flags_that_make_no_sense(module: str, args: list[str], word: str) -> None:
    assert_one_clear_line(start(module, *args), word)


@pytest.mark.processes
def test_an_address_that_is_taken(verify: str) -> None:
    done = start("draft_node", "--engine", "lookup", "--listen", verify)
    assert_one_clear_line(done, "cannot listen", "port 0")
