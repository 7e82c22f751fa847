"""Answers outlive the nodes that make them: real processes on one tiny model, killed, stopped."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from transformers import PreTrainedTokenizerFast

import anydraft
from anydraft.cli.nodes import NodeProcess
from anydraft.errors import (
    AnydraftError,
    FailedPreconditionError,
    InvalidRequestError,
    NotFoundError,
    PermissionDeniedError,
    UnavailableError,
)
from anydraft.rpc.status import from_rpc_error
from anydraft.v1.generation_pb2 import GenerateRequest, GenerateResponse
from anydraft.v1.generation_pb2_grpc import GenerationServiceStub
from anydraft.v1.prompt_pb2 import GenerationSpec, Prompt, SamplingParams, StopConditions
from anydraft.v1.result_pb2 import FINISH_REASON_LENGTH, Resume
from draft_node.drafters.lookup import LookupDrafter
from tests import models_zoo, nodes, tokenizers_zoo
from tests.integration.drafters import KnowingDrafter

NEW_TOKENS = 450
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.0, "seed": 7},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model on disk, for processes to load."""
    folder = tmp_path_factory.mktemp("model")
    models_zoo.build("llama").save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizers_zoo.build("gpt2")).save_pretrained(folder)
    return folder


@contextmanager
def verifier(folder: Path, *flags: str) -> Iterator[tuple[NodeProcess, str]]:
    args = ["--model", str(folder), "--listen", "127.0.0.1:0", "--threads", "1", *flags]
    with NodeProcess("verify_node", args) as node:
        yield node, node.wait_ready(60)


def spec_of(settings: dict[str, Any], **more: Any) -> GenerationSpec:
    return GenerationSpec(
        prompt=Prompt(text="the cat sat on"),
        sampling=SamplingParams(**settings),
        stop=StopConditions(max_new_tokens=NEW_TOKENS, ignore_eos=True, **more),
    )


def ask(
    address: str, spec: GenerationSpec, resume: Resume | None = None
) -> Iterator[GenerateResponse]:
    with grpc.insecure_channel(address) as channel:
        stub = GenerationServiceStub(channel)
        yield from stub.Generate(GenerateRequest(spec=spec, resume=resume), timeout=60)


def told(responses: Sequence[GenerateResponse]) -> tuple[str, list[int]]:
    deltas = [response.delta for response in responses if response.HasField("delta")]
    return "".join(d.text for d in deltas), [i for d in deltas for i in d.token_ids]


class Undisturbed:
    """What one verify node answers that nobody disturbs."""

    def __init__(self, address: str, spec: GenerationSpec) -> None:
        responses = list(ask(address, spec))
        self.opened = responses[0].opened
        self.text, self.token_ids = told(responses)
        self.stats = responses[-1].finished.stats
        assert len(self.token_ids) == NEW_TOKENS

    def spec(self, spec: GenerationSpec) -> GenerationSpec:
        """With what is in force."""
        whole = GenerationSpec()
        whole.CopyFrom(spec)
        whole.sampling.seed = self.opened.seed
        whole.stop.max_new_tokens = self.opened.max_new_tokens
        return whole

    def internal_text(self, address: str, spec: GenerationSpec) -> str:
        """With special tokens written out."""
        (opened, *_) = ask(address, self.spec(spec), self.begun(NEW_TOKENS))
        return opened.opened.committed_text

    def begun(self, num_tokens: int) -> Resume:
        return Resume(token_ids=self.token_ids[:num_tokens], fingerprint=self.opened.fingerprint)


@pytest.fixture(scope="module")
def steady(folder: Path) -> Iterator[str]:
    """A verify node that is left alone."""
    with verifier(folder) as (_, address):
        yield address


@pytest.mark.parametrize("how", ["greedy", "sampled"])
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "stop"])
def test_an_answer_goes_on_elsewhere_when_its_verify_node_ends(
    folder: Path, steady: str, how: str, end: signal.Signals
) -> None:
    spec = spec_of(SETTINGS[how])
    undisturbed = Undisturbed(steady, spec)
    with ExitStack() as stack:
        doomed, address = stack.enter_context(verifier(folder))
        # The first is asked first while both do nothing.
        edge = stack.enter_context(
            nodes.draft_node(LookupDrafter(), [address, steady], knows_all=True)
        )
        nodes.wait_ready(edge)
        responses: list[GenerateResponse] = []
        for response in ask(edge, spec):
            if response.HasField("delta") and not any(r.HasField("delta") for r in responses):
                os.kill(doomed.pid, end)
            responses.append(response)
        assert doomed.wait_end(30) == (0 if end == signal.SIGTERM else -signal.SIGKILL)
    assert told(responses) == (undisturbed.text, undisturbed.token_ids)
    assert [r.HasField("opened") for r in responses].count(True) == 1
    stats = responses[-1].finished.stats
    assert stats.completion_tokens == NEW_TOKENS
    assert stats.text_bytes == undisturbed.stats.text_bytes
    assert stats.resumes == 1


def test_the_drafter_goes_on_with_the_answer(folder: Path, steady: str) -> None:
    """What it drafted and sent, the next verify node has never heard of."""
    spec = spec_of(SETTINGS["greedy"])
    undisturbed = Undisturbed(steady, spec)
    internal = undisturbed.internal_text(steady, spec)
    drafter = KnowingDrafter({spec.prompt.text: internal})
    with ExitStack() as stack:
        doomed, address = stack.enter_context(verifier(folder))
        edge = stack.enter_context(nodes.draft_node(drafter, [address, steady], knows_all=True))
        nodes.wait_ready(edge)
        responses: list[GenerateResponse] = []
        for response in ask(edge, spec):
            if response.HasField("delta") and not any(r.HasField("delta") for r in responses):
                os.kill(doomed.pid, signal.SIGKILL)
            responses.append(response)
        assert doomed.wait_end(30) == -signal.SIGKILL
    assert told(responses) == (undisturbed.text, undisturbed.token_ids)
    stats = responses[-1].finished.stats
    assert stats.resumes == 1
    assert stats.accepted_tokens > 0, "of the second verify node alone"


@pytest.mark.parametrize("begun", [1, 100])
def test_a_drafter_that_comes_late_knows_what_was_said(
    folder: Path, steady: str, begun: int
) -> None:
    spec = spec_of(SETTINGS["greedy"])
    undisturbed = Undisturbed(steady, spec)
    drafter = KnowingDrafter({spec.prompt.text: undisturbed.internal_text(steady, spec)})
    with nodes.draft_node(drafter, steady) as edge:
        nodes.wait_ready(edge)
        responses = list(ask(edge, undisturbed.spec(spec), undisturbed.begun(begun)))
    assert told(responses)[1] == undisturbed.token_ids[begun:]
    assert responses[-1].finished.stats.accepted_tokens > 0


def test_a_node_that_stops_and_has_no_successor_finishes_what_it_began(
    folder: Path, steady: str
) -> None:
    spec = spec_of(SETTINGS["greedy"])
    undisturbed = Undisturbed(steady, spec)
    with ExitStack() as stack:
        doomed, address = stack.enter_context(verifier(folder))
        edge = stack.enter_context(nodes.draft_node(LookupDrafter(), address))
        nodes.wait_ready(edge)
        responses: list[GenerateResponse] = []
        for response in ask(edge, spec):
            if response.HasField("opened"):
                os.kill(doomed.pid, signal.SIGTERM)
            responses.append(response)
        assert doomed.wait_end(30) == 0
    assert told(responses) == (undisturbed.text, undisturbed.token_ids)
    assert responses[-1].finished.stats.resumes == 0


def test_with_nobody_left_the_answer_ends_and_goes_on_when_somebody_is_there(
    folder: Path, steady: str
) -> None:
    """What the client was told is enough; the draft node may be another one, too."""
    spec = spec_of(SETTINGS["sampled"])
    undisturbed = Undisturbed(steady, spec)
    with ExitStack() as stack:
        doomed, address = stack.enter_context(verifier(folder))
        edge = stack.enter_context(nodes.draft_node(LookupDrafter(), address, reconnect_s=0.5))
        nodes.wait_ready(edge)
        responses: list[GenerateResponse] = []

        def kill_when_it_has_begun() -> None:
            for response in ask(edge, spec):
                if response.HasField("delta") and len(responses) == 1:
                    os.kill(doomed.pid, signal.SIGKILL)
                responses.append(response)

        with pytest.raises(grpc.RpcError) as caught:
            kill_when_it_has_begun()
        assert isinstance(from_rpc_error(caught.value, address=edge), UnavailableError)
    text, token_ids = told(responses)
    assert 0 < len(token_ids) < NEW_TOKENS
    rest = undisturbed.begun(len(token_ids))
    with nodes.draft_node(LookupDrafter(), steady) as edge:
        nodes.wait_ready(edge)
        more = told(list(ask(edge, undisturbed.spec(spec), rest)))
    assert (text + more[0], token_ids + more[1]) == (undisturbed.text, undisturbed.token_ids)


@pytest.mark.parametrize("through", ["verify", "draft"])
def test_an_answer_goes_on_from_every_place(steady: str, through: str) -> None:
    """From its last token as well, behind which there is only to say why it ended."""
    spec = spec_of(SETTINGS["greedy"])
    undisturbed = Undisturbed(steady, spec)
    with ExitStack() as stack:
        address = steady
        if through == "draft":
            address = stack.enter_context(nodes.draft_node(LookupDrafter(), steady))
            nodes.wait_ready(address)
        whole = undisturbed.spec(spec)
        for begun in (1, 2, 3, 50, 51, 52, NEW_TOKENS - 1, NEW_TOKENS):
            responses = list(ask(address, whole, undisturbed.begun(begun)))
            text, token_ids = told(responses)
            assert token_ids == undisturbed.token_ids[begun:]
            assert undisturbed.text.endswith(text)
            finished = responses[-1].finished
            assert finished.stats.completion_tokens == NEW_TOKENS
            assert finished.stats.text_bytes == undisturbed.stats.text_bytes
            assert finished.reason == responses[-1].finished.reason


def tokens_of(responses: Iterator[GenerateResponse], at_least: int) -> list[GenerateResponse]:
    """Reads no further than that, and leaves."""
    read: list[GenerateResponse] = []
    for response in responses:
        read.append(response)
        if len(told(read)[1]) >= at_least:
            return read
    return read


@pytest.mark.parametrize("how", ["greedy", "sampled"])
@pytest.mark.parametrize("through", ["verify", "draft"])
@pytest.mark.parametrize("read", [1, 40, NEW_TOKENS])
def test_a_session_outlives_the_call_that_began_it(
    steady: str, through: str, how: str, read: int
) -> None:
    """A client that knows no more than its session's id and token: all of it, once."""
    spec = spec_of(SETTINGS[how])
    undisturbed = Undisturbed(steady, spec)
    with ExitStack() as stack:
        address = steady
        if through == "draft":
            address = stack.enter_context(nodes.draft_node(LookupDrafter(), steady))
            nodes.wait_ready(address)
        opened = tokens_of(ask(address, spec), read)[0].opened
        for _ in range(2):  # and again, of an answer that was finished
            resume = Resume(session_id=opened.session_id, token=opened.resume_token)
            responses = list(ask(address, GenerationSpec(), resume))
            assert told(responses) == (undisturbed.text, undisturbed.token_ids)
            assert [r.HasField("opened") for r in responses].count(True) == 1
            assert responses[-1].finished.reason == FINISH_REASON_LENGTH


def test_a_session_is_its_own(steady: str) -> None:
    spec = spec_of(SETTINGS["greedy"])
    first = ask(steady, spec)
    opened = next(first).opened
    assert len(opened.resume_token) == 32
    wrong = Resume(session_id=opened.session_id, token="0" * 32)
    error = failed(steady, GenerationSpec(), wrong)
    assert isinstance(error, PermissionDeniedError)
    assert error.reason == "RESUME_TOKEN_WRONG"
    nobody = failed(steady, GenerationSpec(), Resume(session_id="nobody", token="0" * 32))
    assert isinstance(nobody, NotFoundError)
    both = Resume(session_id=opened.session_id, token=opened.resume_token, token_ids=[5])
    assert isinstance(failed(steady, GenerationSpec(), both), InvalidRequestError)
    assert len(told(list(first))[1]) == NEW_TOKENS, "none of these has harmed it"


def test_a_session_that_is_forgotten_is_not_found(folder: Path) -> None:
    with verifier(folder, "--session-ttl", "0.2") as (_, address):
        opened = next(ask(address, spec_of(SETTINGS["greedy"]))).opened
        time.sleep(0.5)
        resume = Resume(session_id=opened.session_id, token=opened.resume_token)
        assert failed(address, GenerationSpec(), resume).reason == "SESSION_NOT_FOUND"
    with verifier(folder, "--session-ttl", "0") as (_, address):
        assert not next(ask(address, spec_of(SETTINGS["greedy"]))).opened.resume_token


def failed(address: str, spec: GenerationSpec, resume: Resume) -> AnydraftError:
    with pytest.raises(grpc.RpcError) as caught:
        list(ask(address, spec, resume))
    return from_rpc_error(caught.value, address=address)


def test_what_is_no_beginning_of_the_answer_is_refused(steady: str) -> None:
    spec = spec_of(SETTINGS["greedy"])
    undisturbed = Undisturbed(steady, spec)
    whole, mark = undisturbed.spec(spec), undisturbed.opened.fingerprint
    for ids in ([-1], [10**6], [*undisturbed.token_ids, 5]):
        error = failed(steady, whole, Resume(token_ids=ids, fingerprint=mark))
        assert isinstance(error, InvalidRequestError)
        assert error.reason == "RESUME_INVALID"
    assert failed(steady, whole, Resume(token_ids=[5])).reason == "FIELD_MISSING"
    assert failed(steady, spec, undisturbed.begun(2)).reason == "FIELD_MISSING"
    other = failed(steady, whole, Resume(token_ids=[5], fingerprint="another"))
    assert isinstance(other, FailedPreconditionError)
    assert other.reason == "FINGERPRINT_MISMATCH"


async def test_the_sdk_reads_a_session_again(steady: str) -> None:
    options = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True, "temperature": 0.0}
    with anydraft.Client(steady, timeout=60) as client:
        whole = client.generate("the cat sat on", **options).result()
        stream = client.generate("the cat sat on", **options)
        next(stream)
        session = stream.session
        assert session is not None
        stream.close()
        assert client.resume(session).result().text == whole.text
        forged = dataclasses.replace(session, token="0" * 32)
        with pytest.raises(anydraft.PermissionDeniedError):
            client.resume(forged).result()
    async with anydraft.AsyncClient(steady, timeout=60) as async_client:
        again = await async_client.resume(session).result()
    assert (again.text, again.token_ids) == (whole.text, whole.token_ids)
