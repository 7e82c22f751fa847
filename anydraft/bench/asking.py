"""What a run asks of a target besides answers: margins, and answers to be recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from anydraft.bench.arms import ANSWER_TIMEOUT_S
from anydraft.bench.recordings import Recording
from anydraft.bench.tasks import Task
from anydraft.client import AsyncClient, AsyncStream, TokenLogprobs


async def margin_at(address: str, task: Task, ids: Sequence[int], index: int) -> float | None:
    """By how many nats the target alone preferred its own id at `index` to that of `ids`; None
    where that was not its second best, or the answers only differ in length."""
    async with AsyncClient(address, timeout=ANSWER_TIMEOUT_S) as client:
        result = await _ask(client, task, index + 1).result()
    if index >= min(len(ids), len(result.token_ids)):
        return None
    logprobs = {top.token_id: top.logprob for top in result.logprobs[index].top}
    own, other = (logprobs.get(i) for i in (result.token_ids[index], ids[index]))
    return None if own is None or other is None else own - other


async def record(
    address: str,
    tasks: Sequence[Task],
    sessions: int,
    heard: Callable[[Recording], None],
) -> list[Recording]:
    """What the target at `address` answers to each task, that many at once."""
    places = asyncio.Semaphore(sessions)

    async def record_one(task: Task) -> Recording:
        async with places:
            result = await _ask(client, task, task.max_new_tokens).result()
        recording = Recording(
            category=task.category,
            prompt=task.prompt,
            ids=result.token_ids,
            target=result.model,
            temperature=task.temperature,
            seed=result.seed if task.temperature else None,
            ended=result.finish_reason == "eos",
            margins=tuple(round(_margin(token), 4) for token in result.logprobs),
        )
        heard(recording)
        return recording

    async with AsyncClient(address, timeout=ANSWER_TIMEOUT_S) as client:
        return await asyncio.gather(*(record_one(task) for task in tasks))


def _ask(client: AsyncClient, task: Task, max_new_tokens: int) -> AsyncStream:
    return client.generate(
        messages=[{"role": "user", "content": task.prompt}],
        max_new_tokens=max_new_tokens,
        temperature=task.temperature,
        seed=task.seed,
        logprobs=2,
    )


def _margin(token: TokenLogprobs) -> float:
    """Of the token over the best of the others."""
    best = max((t.logprob for t in token.top if t.token_id != token.token_id), default=0.0)
    return token.logprob - best
