"""Answers that are cut short, and what the SDK makes of the rest."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator

import grpc
import pytest

import anydraft
from anydraft.client import _resume
from anydraft.v1 import result_pb2
from tests.client.fake_node import SEED, FakeNode, Request, Response, delta, finished

WHOLE = [("Hel", (1, 2)), ("lo", (3,)), (" wörld", (4, 5))]


class CutShort:
    """Says what is left of WHOLE, one delta a call, then goes away."""

    def __init__(self, *, fingerprint: str = "f", error: str = "CONNECTION_LOST") -> None:
        self.fingerprint = fingerprint

    def __call__(self, request: Request, context: grpc.ServicerContext) -> Iterator[Response]:
        yield Response(
            opened=result_pb2.Opened(
                session_id="s",
                model="big",
                seed=SEED,
                max_new_tokens=77,
                fingerprint=self.fingerprint,
            )
        )
        known = len(request.resume.token_ids)
        said = next(n for n in range(3) if sum(len(ids) for _, ids in WHOLE[:n]) == known)
        text, ids = WHOLE[said]
        yield delta(text, *ids)
        if said + 1 < len(WHOLE):
            context.abort(grpc.StatusCode.UNAVAILABLE, "went away")
        yield finished()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_resume, "_FIRST_PAUSE_S", 0.001)


def test_retries_give_the_whole_answer(node: FakeNode) -> None:
    node.answer_with(CutShort())
    with anydraft.Client(node.address) as client:
        stream = client.generate("Hi", temperature=1.0, retries=2)
        assert [event.text for event in stream] == [text for text, _ in WHOLE]
        result = stream.result()
    assert result.text == "Hello wörld"
    assert result.token_ids == (1, 2, 3, 4, 5)
    assert [list(r.resume.token_ids) for r in node.requests] == [[], [1, 2], [1, 2, 3]]
    for request in node.requests[1:]:
        assert request.spec.sampling.seed == SEED
        assert request.spec.stop.max_new_tokens == 77
        assert request.resume.fingerprint == "f"
        assert request.spec.prompt == node.requests[0].spec.prompt


async def test_retries_give_the_whole_answer_to_coroutines(node: FakeNode) -> None:
    node.answer_with(CutShort())
    async with anydraft.AsyncClient(node.address) as client:
        stream = client.generate("Hi", retries=2)
        assert [event.text async for event in stream] == [text for text, _ in WHOLE]
        assert (await stream.result()).text == "Hello wörld"
    assert [list(r.resume.token_ids) for r in node.requests] == [[], [1, 2], [1, 2, 3]]


def test_an_answer_goes_on_later_from_what_was_stored(node: FakeNode) -> None:
    node.answer_with(CutShort())
    with anydraft.Client(node.address) as client:
        stream = client.generate("Hi", logprobs=None)
        with pytest.raises(anydraft.UnavailableError):
            stream.result()
        point = stream.resume_point
    assert point is not None
    assert (point.text, point.token_ids, point.seed) == ("Hel", (1, 2), SEED)
    stored = pickle.loads(pickle.dumps(point))
    with anydraft.Client(node.address) as client:
        stream = client.generate("Hi", resume=stored, retries=1)
        assert [event.text for event in stream] == ["lo", " wörld"]
        assert stream.result().text == "Hello wörld"
        assert stream.result().token_ids == (1, 2, 3, 4, 5)


@pytest.mark.parametrize("retries", [0, 1])
def test_retries_are_counted(node: FakeNode, retries: int) -> None:
    node.answer_with(CutShort())
    with anydraft.Client(node.address) as client:
        stream = client.generate("Hi", retries=retries)
        with pytest.raises(anydraft.UnavailableError):
            stream.result()
        with pytest.raises(anydraft.UnavailableError):
            next(stream)
    assert len(node.requests) == retries + 1


def test_an_answer_that_nobody_could_go_on_with_is_not_begun_anew(node: FakeNode) -> None:
    """It was shown in part: a second beginning would repeat it."""
    node.answer_with(CutShort(fingerprint=""))
    with anydraft.Client(node.address) as client:
        stream = client.generate("Hi", retries=5)
        with pytest.raises(anydraft.UnavailableError):
            stream.result()
        assert stream.resume_point is None
    assert len(node.requests) == 1


def test_what_is_wrong_with_the_request_is_not_tried_again(node: FakeNode) -> None:
    def refuse(request: Request, context: grpc.ServicerContext) -> Iterator[Response]:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no")
        yield finished()

    node.answer_with(refuse)
    with anydraft.Client(node.address) as client:
        with pytest.raises(anydraft.InvalidRequestError):
            client.generate("Hi", retries=5).result()
        with pytest.raises(anydraft.InvalidRequestError):
            client.generate("Hi", retries=-1)
    assert len(node.requests) == 1


def test_a_node_that_is_not_there_yet_is_asked_again() -> None:
    with anydraft.Client("127.0.0.1:9", timeout=5) as client:
        started = time.monotonic()
        with pytest.raises(anydraft.UnavailableError):
            client.generate("Hi", retries=3)
        assert time.monotonic() - started < 5
