"""Answers that outlive their calls, without a node."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from anydraft.errors import AnydraftError, FailedPreconditionError, NotFoundError
from anydraft.rpc import answer_table
from anydraft.rpc.answer_table import AnswerTable
from anydraft.v1.generation_pb2 import GenerateRequest, GenerateResponse, TextDelta
from anydraft.v1.result_pb2 import FINISH_REASON_EOS, Finished, Opened, Resume

IDS = list(range(100, 110))
ASKED = GenerateRequest()
ASKED.spec.prompt.text = "Say the numbers"


class Speaker:
    """Makes an answer of ten tokens, one a delta, from wherever it was begun."""

    def __init__(self) -> None:
        self.requests: list[GenerateRequest] = []
        self.num_closed = 0

    async def __call__(self, request: GenerateRequest) -> AsyncGenerator[GenerateResponse, None]:
        self.requests.append(request)
        try:
            yield GenerateResponse(
                opened=Opened(
                    session_id=f"s{len(self.requests)}",
                    seed=5,
                    max_new_tokens=77,
                    fingerprint="f",
                )
            )
            for token_id in IDS[len(request.resume.token_ids) :]:
                yield GenerateResponse(delta=TextDelta(text=f"{token_id} ", token_ids=[token_id]))
            yield GenerateResponse(finished=Finished(reason=FINISH_REASON_EOS))
        finally:
            self.num_closed += 1


async def read(
    table: AnswerTable, make: Speaker, request: GenerateRequest, most: int = 1000
) -> list[GenerateResponse]:
    responses: list[GenerateResponse] = []
    async with aclosing(table.answer(request, make)) as answer:
        async for response in answer:
            responses.append(response)
            if len(responses) == most:
                break
    return responses


def ids_of(responses: list[GenerateResponse]) -> list[int]:
    return [token_id for response in responses for token_id in response.delta.token_ids]


def again(responses: list[GenerateResponse]) -> GenerateRequest:
    opened = responses[0].opened
    return GenerateRequest(resume=Resume(session_id=opened.session_id, token=opened.resume_token))


@pytest.mark.parametrize("most", range(1, 13))
async def test_it_is_all_said_again_wherever_its_reader_left(most: int) -> None:
    table, make = AnswerTable(), Speaker()
    begun = await read(table, make, ASKED, most)
    for _ in range(2):
        whole = await read(table, make, again(begun))
        assert ids_of(whole) == IDS
        assert whole[0].opened.session_id == begun[0].opened.session_id
        assert [r.HasField("opened") for r in whole].count(True) == 1
        assert whole[-1].finished.reason == FINISH_REASON_EOS
    if len(make.requests) > 1:
        rest = make.requests[1]
        assert rest.spec.prompt == ASKED.spec.prompt
        assert (rest.spec.sampling.seed, rest.spec.stop.max_new_tokens) == (5, 77)
        assert list(rest.resume.token_ids) == IDS[: len(rest.resume.token_ids)]
    assert len(make.requests) <= 2, "what was finished is not made again"
    assert make.num_closed == len(make.requests)


async def test_an_answer_that_was_itself_begun_elsewhere_keeps_its_beginning() -> None:
    table, make = AnswerTable(), Speaker()
    request = GenerateRequest(resume=Resume(token_ids=IDS[:3], fingerprint="f"))
    begun = await read(table, make, request, 3)
    assert ids_of(begun) == IDS[3:5]
    assert ids_of(await read(table, make, again(begun))) == IDS[3:]
    assert list(make.requests[1].resume.token_ids) == IDS[:5]


async def test_whoever_reads_it_is_overtaken_by_who_resumes_it() -> None:
    table, make = AnswerTable(), Speaker()
    first = table.answer(ASKED, make)
    begun = [await anext(first), await anext(first)]
    whole = await read(table, make, again(begun))
    assert ids_of(whole) == IDS
    with pytest.raises(FailedPreconditionError) as caught:
        await anext(first)
    assert caught.value.reason == "SESSION_RESUMED_ELSEWHERE"
    assert ids_of(await read(table, make, again(begun))) == IDS


async def test_answers_are_forgotten_in_time_and_beyond_their_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(answer_table.time, "monotonic", lambda: now[0])
    table, make = AnswerTable(10.0), Speaker()
    early = await read(table, make, ASKED)
    now[0] = 9.0
    late = await read(table, make, ASKED)
    now[0] = 11.0
    with pytest.raises(NotFoundError):
        await read(table, make, again(early))
    assert ids_of(await read(table, make, again(late))) == IDS
    monkeypatch.setattr(answer_table, "_MAX_BYTES", 1)
    crowd = [await read(table, make, ASKED, 5) for _ in range(3)]
    for begun in crowd:
        with pytest.raises(NotFoundError):
            await read(table, make, again(begun))
    assert not table._live
    assert table._num_bytes == 0


async def test_nothing_is_kept_where_nothing_could_go_on() -> None:
    class Nameless(Speaker):
        async def __call__(
            self, request: GenerateRequest
        ) -> AsyncGenerator[GenerateResponse, None]:
            async for response in super().__call__(request):
                if response.HasField("opened"):
                    response.opened.ClearField("fingerprint")
                yield response

    for table, make in ((AnswerTable(0.0), Speaker()), (AnswerTable(), Nameless())):
        begun = await read(table, make, ASKED)
        assert ids_of(begun) == IDS
        assert not begun[0].opened.resume_token
        assert not table._live
        assert not table._left


async def test_what_goes_wrong_ends_the_call_and_keeps_the_session() -> None:
    class Broken(Speaker):
        async def __call__(
            self, request: GenerateRequest
        ) -> AsyncGenerator[GenerateResponse, None]:
            async for response in super().__call__(request):
                if response.delta.token_ids == [105] and len(self.requests) == 1:
                    raise AnydraftError("broken", reason="TARGET_FAILED")
                yield response

    table, make = AnswerTable(), Broken()
    read_so_far: list[GenerateResponse] = []

    async def read_on() -> None:
        async for response in table.answer(ASKED, make):
            read_so_far.append(response)

    with pytest.raises(AnydraftError):
        await read_on()
    assert ids_of(read_so_far) == IDS[:5]
    assert ids_of(await read(table, make, again(read_so_far))) == IDS
