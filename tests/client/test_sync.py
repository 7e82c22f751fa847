import threading
import time
from typing import Any

import pytest

import anydraft
from anydraft.client import Client
from anydraft.errors import (
    AnydraftError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidRequestError,
    ResourceExhaustedError,
    UnavailableError,
)
from anydraft.v1 import result_pb2, server_pb2
from tests.client.fake_node import HELLO, SEED, FakeNode, delta, finished, opened


def test_streams_text_and_assembles_the_result(node: FakeNode) -> None:
    with Client(node.address) as client, client.generate("Hi", seed=3) as stream:
        events = list(stream)
        result = stream.result()
    assert [event.text for event in events] == ["Hel", "lo wörld"]
    assert [event.drafted_text for event in events] == ["He", ""]
    assert (result.text, result.token_ids) == ("Hello wörld", (1, 2, 3, 4))
    assert (result.finish_reason, result.stop) == ("eos", None)
    assert (result.seed, result.model, result.session_id) == (SEED, "big", "s1")
    assert result.stats.acceptance_rate == 0.75
    assert result.stats.tokens_per_round == 2.0
    assert result.stats.time_to_first_text_s is not None
    assert 0 <= result.stats.time_to_first_text_s <= result.stats.total_s
    assert result.stats.tokens_per_second == pytest.approx(4 / result.stats.total_s)


def test_result_alone_consumes_the_stream(node: FakeNode) -> None:
    with Client(node.address) as client:
        stream = client.generate("Hi")
        assert next(stream).text == "Hel"
        assert stream.result() == stream.result()
        assert stream.result().text == "Hello wörld"
        assert list(stream) == []


def test_drafted_bytes_count_whole_characters_only(node: FakeNode) -> None:
    node.answer(opened(), delta("aöb", 1, drafted_bytes=2), finished())
    with Client(node.address) as client:
        (event,) = client.generate("Hi")
    assert (event.drafted_chars, event.drafted_text) == (1, "a")


def test_stop_string_and_logprobs(node: FakeNode) -> None:
    entry = result_pb2.TokenLogprobs(
        logprob=-0.5, top=[result_pb2.TokenLogprob(token_id=7, logprob=-0.25)]
    )
    node.answer(
        opened(),
        delta("a", 1, logprobs=[entry]),
        finished(result_pb2.FINISH_REASON_STOP, "END"),
    )
    with Client(node.address) as client:
        result = client.generate("Hi", stop="END", logprobs=1).result()
    assert (result.finish_reason, result.stop) == ("stop", "END")
    expected = anydraft.TokenLogprobs(1, -0.5, (anydraft.AlternativeToken(7, -0.25),))
    assert result.logprobs == (expected,)


def test_what_is_asked_arrives(node: FakeNode) -> None:
    with Client(node.address) as client:
        client.generate(
            messages=[{"role": "user", "content": "Hi"}],
            max_new_tokens=5,
            temperature=0,
            top_k=0,
            logit_bias={3: -1.5},
            seed=SEED,
            stop=["a", "b"],
            ignore_eos=True,
            logprobs=0,
            model="big",
        ).result()
        client.generate("plain").result()
    spec, plain = (request.spec for request in node.requests)
    assert [(m.role, m.content) for m in spec.prompt.messages.messages] == [("user", "Hi")]
    assert spec.sampling.HasField("temperature")
    assert spec.sampling.HasField("top_k")
    assert not spec.sampling.HasField("top_p")
    assert dict(spec.sampling.logit_bias) == {3: -1.5}
    assert (spec.sampling.seed, spec.model) == (SEED, "big")
    assert (spec.stop.max_new_tokens, list(spec.stop.stop), spec.stop.ignore_eos) == (
        5,
        ["a", "b"],
        True,
    )
    assert spec.HasField("logprobs")
    assert plain.prompt.text == "plain"
    assert not plain.sampling.ListFields()
    assert not plain.HasField("logprobs")


def test_bad_arguments_are_refused_before_dialling() -> None:
    client = Client("127.0.0.1:1")
    with pytest.raises(InvalidRequestError, match="top_p"):
        client.generate("Hi", top_p=2)
    with pytest.raises(TypeError, match="temprature"):
        client.generate("Hi", temprature=1)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError, match="port"):
        Client("localhost")
    timeouts: list[Any] = [0, -1, float("nan"), "5", True]
    for timeout in timeouts:
        with pytest.raises(InvalidRequestError, match="timeout"):
            Client("127.0.0.1:1", timeout=timeout)
        with pytest.raises(InvalidRequestError, match="timeout"):
            client.generate("Hi", timeout=timeout)


def test_leaving_early_cancels_on_the_server(node: FakeNode) -> None:
    node.hang(opened(), delta("a", 1))
    with Client(node.address) as client:
        with client.generate("Hi") as stream:
            assert next(stream).text == "a"
            assert not node.ended.is_set()
        assert node.ended.wait(5)
        assert list(stream) == []
        with pytest.raises(FailedPreconditionError, match="closed before"):
            stream.result()


def test_dropping_the_stream_cancels_on_the_server(node: FakeNode) -> None:
    node.hang(opened(), delta("a", 1))
    with Client(node.address) as client:
        for event in client.generate("Hi"):
            assert event.text == "a"
            break
        assert node.ended.wait(5)


def test_closing_from_another_thread_ends_the_iteration(node: FakeNode) -> None:
    node.hang(opened(), delta("a", 1))
    with Client(node.address) as client:
        stream = client.generate("Hi")
        next(stream)
        timer = threading.Timer(0.1, stream.close)
        timer.start()
        assert list(stream) == []
        timer.join()


def test_a_finished_answer_survives_close(node: FakeNode) -> None:
    with Client(node.address) as client:
        with client.generate("Hi") as stream:
            list(stream)
        assert stream.result().text == "Hello wörld"


def test_closing_the_client_ends_its_streams(node: FakeNode) -> None:
    node.hang(opened(), delta("a", 1))
    client = Client(node.address)
    stream = client.generate("Hi")
    next(stream)
    client.close()
    with pytest.raises(AnydraftError) as caught:
        next(stream)
    assert caught.value.reason == "CANCELLED"
    with pytest.raises(FailedPreconditionError, match="client is closed"):
        client.generate("Hi")


def test_server_errors_keep_class_reason_and_delay(node: FakeNode) -> None:
    node.fail(ResourceExhaustedError("full: wait", reason="KV_FULL", retry_after_s=1.5), HELLO[1])
    with Client(node.address) as client:
        stream = client.generate("Hi")
        assert next(stream).text == "Hel"
        for read in (stream.__next__, stream.result):
            with pytest.raises(ResourceExhaustedError, match="full: wait") as caught:
                read()
            assert (caught.value.reason, caught.value.retry_after_s) == ("KV_FULL", 1.5)


def test_a_stream_without_an_end_is_an_error(node: FakeNode) -> None:
    node.answer(opened(), delta("a", 1))
    with Client(node.address) as client, pytest.raises(InternalError) as caught:
        client.generate("Hi").result()
    assert caught.value.reason == "TRUNCATED_STREAM"


def test_an_unknown_finish_reason_is_an_error(node: FakeNode) -> None:
    node.answer(opened(), finished(99))
    with Client(node.address) as client, pytest.raises(InternalError) as caught:
        client.generate("Hi").result()
    assert caught.value.reason == "UNKNOWN_FINISH_REASON"


def test_a_timeout_longer_than_grpc_can_count_is_none(node: FakeNode) -> None:
    with Client(node.address, timeout=1e10) as client:
        assert client.generate("Hi", timeout=1e308).result().text == "Hello wörld"
        assert client.server_info().model == "big"


def test_timeout(node: FakeNode) -> None:
    node.hang(opened())
    with Client(node.address, timeout=30) as client:
        started_at_s = time.monotonic()
        with pytest.raises(DeadlineExceededError, match=node.address):
            client.generate("Hi", timeout=0.2).result()
        assert time.monotonic() - started_at_s < 5
        assert node.ended.wait(5)


def test_nobody_there() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(UnavailableError) as caught:
        client.generate("Hi")
    assert "127.0.0.1:1" in str(caught.value)
    assert caught.value.reason == "UNREACHABLE"


def test_another_revision_is_refused(node: FakeNode) -> None:
    node.info.protocol_revision += 1
    with Client(node.address) as client:
        assert client.server_info().protocol_revision == node.info.protocol_revision
        with pytest.raises(FailedPreconditionError, match="revision"):
            client.generate("Hi")
    assert node.requests == []


def test_the_revision_is_asked_once(node: FakeNode) -> None:
    with Client(node.address) as client:
        client.generate("Hi").result()
        client.generate("Hi").result()
    assert node.num_info_calls == 1


def test_server_info(node: FakeNode) -> None:
    with Client(node.address) as client:
        info = client.server_info()
    assert (info.role, info.model, info.engine) == ("verify", "big", "scripted")
    assert (info.context_tokens, info.verify_address) == (128, None)
    assert (info.assistant, info.dtype) == (None, None)


def test_server_info_of_a_draft_node(node: FakeNode) -> None:
    node.info.role = server_pb2.NODE_ROLE_DRAFT
    node.info.assistant, node.info.dtype = "small", "bfloat16"
    with Client(node.address) as client:
        info = client.server_info()
    assert (info.role, info.model) == ("draft", "big")
    assert (info.assistant, info.dtype) == ("small", "bfloat16")


def test_wait_until_ready(node: FakeNode) -> None:
    node.set_ready(False)
    with Client(node.address) as client:
        with pytest.raises(DeadlineExceededError, match="still loading"):
            client.wait_until_ready(timeout=1)
        timer = threading.Timer(0.1, node.set_ready, [True])
        timer.start()
        client.wait_until_ready(timeout=10)
        timer.join()


def test_wait_until_ready_waits_for_a_node_that_is_not_there() -> None:
    with Client("127.0.0.1:1") as client:
        with pytest.raises(DeadlineExceededError, match="cannot connect") as caught:
            client.wait_until_ready(timeout=0.3)
        assert caught.value.reason == "NOT_READY"


def test_one_client_serves_many_threads(node: FakeNode) -> None:
    texts: list[str] = []
    with Client(node.address) as client:

        def ask() -> None:
            texts.append(client.generate("Hi").result().text)

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == ["Hello wörld"] * 6
