"""Both nodes in this process, over real gRPC on loopback, around any model and any drafter."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from anydraft.client import Client
from anydraft.text.tokenizer import TextTokenizer
from draft_node.drafters.base import Drafter
from draft_node.lifecycle import DraftNode
from draft_node.load import LoadedDrafter
from tests.models_zoo import VOCABULARY
from verify_node.drafter_pool import DrafterPool
from verify_node.fingerprint import fingerprint
from verify_node.lifecycle import VerifyNode
from verify_node.runners.context_limit import context_tokens
from verify_node.runners.proof import choose_runner
from verify_node.scheduler import Scheduler, SchedulerLimits
from verify_node.served_model import ServedModel
from verify_node.step_cost import StepCost
from verify_node.target import TargetFacts

FLAT_COST = StepCost([(1, 20.0), (64, 20.0)])
"""Checking costs nothing extra, and waiting for drafts pays: everything that is sent is checked."""


class LoopThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def loop_thread() -> Iterator[LoopThread]:
    loop = LoopThread()
    try:
        yield loop
    finally:
        loop.close()


def served(
    model: PreTrainedModel, tokenizer: TextTokenizer, *, cost: StepCost = FLAT_COST, **limits: int
) -> ServedModel:
    context = context_tokens(model, None)
    facts = TargetFacts("test", "float32", context, VOCABULARY, fingerprint(model, "test"))
    values = {"kv_tokens": 8192, "max_sessions": 16, "max_step_tokens": 64, **limits}
    target = Scheduler(choose_runner(model), cost, facts, SchedulerLimits(**values))
    return ServedModel("tiny", target, tokenizer, model.generation_config, context)


@contextmanager
def verify_node(model: ServedModel, *drafters: str, in_turn: bool = False) -> Iterator[str]:
    """Yields its address. It dials `drafters`."""

    async def build() -> VerifyNode:
        pool = DrafterPool(drafters, in_turn=in_turn) if drafters else None
        return VerifyNode("127.0.0.1:0", pool=pool)

    with loop_thread() as loop:
        node = loop.run(build())
        try:
            address = loop.run(node.start())
            loop.run(node.serve(model))
            yield address
        finally:
            loop.run(node.stop())


@contextmanager
def draft_node(
    drafter: Drafter,
    verify_address: str | Sequence[str] | None,
    listen: str = "127.0.0.1:0",
    *,
    knows_all: bool = False,
    **settings: Any,
) -> Iterator[str]:
    """Yields its address; with `knows_all`, once it has found all of its verify nodes."""

    async def build() -> DraftNode:
        return DraftNode(verify_address, listen, **settings)

    with loop_thread() as loop:
        node = loop.run(build())
        try:
            address = loop.run(node.start())
            loop.run(node.serve(LoadedDrafter(drafter, "test drafter", "test")))
            if knows_all:
                loop.run(_knows_all(node))
            yield address
        finally:
            loop.run(node.stop())


async def _knows_all(node: DraftNode) -> None:
    assert node._nodes is not None
    async with asyncio.timeout(30):
        while not all(verify.watch.is_good for verify in node._nodes._nodes):
            await node._nodes.change(1.0)


def wait_ready(address: str) -> None:
    """Returns when the node answers."""
    with Client(address) as client:
        client.wait_until_ready(30)
