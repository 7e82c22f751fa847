"""Promise 1 over gRPC: whatever the drafts say, the ids are those of `transformers` generate."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from transformers import PreTrainedModel

from anydraft import Client
from anydraft.text.detokenizer import StreamingDetokenizer
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.prompt_pb2 import GenerationSpec, Prompt, StopConditions
from anydraft.v1.verification_pb2 import Close, Draft, DraftPiece, Open, VerifyRequest
from anydraft.v1.verification_pb2_grpc import VerificationServiceStub
from anydraft.version import PROTOCOL_REVISION
from draft_node.drafters.assistant import AssistantDrafter
from draft_node.engines.torch import TorchEngine
from tests import models_zoo, nodes, tokenizers_zoo
from tests.greedy import decided_answer
from tests.integration.drafters import KnowingDrafter, RandomDrafter

NEW_TOKENS = 40
PROMPTS = (
    "The verifier checks",
    "def add(left, right):\n    return",
    "日本語のテキスト 🙂",
    "x",
    "SELECT name FROM users",
    "12 + 34 =",
)
"""Four of them are asked: those that the model at hand has a decided answer to."""
TOKENIZERS = list(tokenizers_zoo.EXACT)


def answers_of(model: PreTrainedModel, tokenizer: TextTokenizer) -> dict[str, list[int]]:
    """Four prompts, each with the ids that `generate` answers."""
    answers: dict[str, list[int]] = {}
    for prompt in PROMPTS:
        prompt_ids = tokenizer.encode(prompt, add_special_tokens=True)
        ids = decided_answer(model, prompt_ids, max_new_tokens=NEW_TOKENS)
        if ids is not None and len(answers) < 4:
            answers[prompt] = ids
    assert len(answers) == 4
    return answers


def text_of(tokenizer: TextTokenizer, ids: Sequence[int]) -> str:
    """The internal text: special tokens written out."""
    detokenizer = StreamingDetokenizer(tokenizer, keep_special=True)
    return detokenizer.push(ids) + detokenizer.flush()


@pytest.mark.parametrize("name", [*models_zoo.EXACT_RAGGED, *models_zoo.EXACT_PER_SESSION])
def test_greedy_ids_through_both_nodes(name: str) -> None:
    """Four sessions at once through each of three draft nodes, and past a hostile client."""
    index = list(models_zoo.ALL).index(name)
    tokenizer = TextTokenizer(tokenizers_zoo.build(TOKENIZERS[index % len(TOKENIZERS)]))
    foreign = TextTokenizer(tokenizers_zoo.build(TOKENIZERS[(index + 3) % len(TOKENIZERS)]))
    model = models_zoo.build(name)
    truths = answers_of(model, tokenizer)
    texts = {prompt: text_of(tokenizer, ids) for prompt, ids in truths.items()}
    assistant = AssistantDrafter(TorchEngine(models_zoo.build("llama", seed=7)), foreign, 0.0)
    drafters = (KnowingDrafter(texts), RandomDrafter(), assistant)
    accepted = []
    with nodes.verify_node(nodes.served(model, tokenizer)) as verify:
        for drafter in drafters:
            with nodes.draft_node(drafter, verify) as draft, ThreadPoolExecutor(5) as pool:
                hostile = pool.submit(hostile_ids, verify, next(iter(truths)))
                answers = {prompt: pool.submit(ask, draft, prompt) for prompt in truths}
                for prompt, answer in answers.items():
                    assert answer.result().token_ids == tuple(truths[prompt])
                assert hostile.result() == next(iter(truths.values()))
                accepted.append(sum(a.result().stats.accepted for a in answers.values()))
                # On a busy machine, all drafts of a round may come too late.
                for _ in range(4):
                    if accepted[0] == 0 and drafter is drafters[0]:
                        accepted[0] += sum(ask(draft, prompt).stats.accepted for prompt in truths)
        alone = {prompt: ask(verify, prompt) for prompt in truths}
    assert {p: a.token_ids for p, a in alone.items()} == {p: tuple(t) for p, t in truths.items()}
    assert accepted[0] > 0, "the drafter that knows the answer was never right"


def ask(address: str, prompt: str, **options: object):
    with Client(address) as client:
        settings = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "timeout": 120, **options}
        return client.generate(prompt, **settings).result()


def hostile_ids(address: str, prompt: str) -> list[int]:
    """A client that speaks the protocol and sends nonsense in it."""
    rng = random.Random(prompt)

    def requests() -> Iterator[VerifyRequest]:
        spec = GenerationSpec(
            prompt=Prompt(text=prompt), stop=StopConditions(max_new_tokens=NEW_TOKENS)
        )
        yield VerifyRequest(open=Open(protocol_revision=PROTOCOL_REVISION, spec=spec))
        for _ in range(60):
            yield VerifyRequest(draft=nonsense(rng))

    with grpc.insecure_channel(address) as channel:
        ids: list[int] = []
        for response in VerificationServiceStub(channel).Verify(requests(), timeout=120):
            ids += response.verdict.token_ids
            if response.HasField("finished"):
                assert response.finished.stats.stale_pieces > 0
        return ids


def nonsense(rng: random.Random) -> Draft:
    """Trees that are stale, ahead, inside characters, empty, huge, certain, impossible; that hang
    in cycles, below what never came, and in thousands from one place."""
    first = rng.choice([0, 1, rng.randrange(1, 2**40), 2**64 - 500])
    count = rng.choice([0, 1, 5, 400, 1000])
    shape = rng.choice(["chain", "siblings", "cycles", "anywhere"])
    return Draft(
        first_piece=first,
        base_bytes=rng.choice([0, rng.randrange(200), 2**62]),
        pieces=[_nonsense_piece(rng, first + index, shape) for index in range(count)],
    )


def _nonsense_piece(rng: random.Random, piece_id: int, shape: str) -> DraftPiece:
    parents = {
        "chain": max(piece_id - 1, 0),
        "siblings": 0,
        "cycles": piece_id + rng.randrange(3),
        "anywhere": rng.choice([0, rng.randrange(2**63), max(piece_id - rng.randrange(9), 0)]),
    }
    texts = [
        b"",
        b"a",
        b" the",
        "世界".encode(),
        "🙂".encode()[:2],
        b"\x9f",
        b"<|im_end|>",
        b"b" * 5000,
    ]
    return DraftPiece(
        text=rng.choice(texts),
        logprob=rng.choice([0.0, -1.0, 3.0, float("nan"), float("-inf")]),
        parent=min(parents[shape], 2**64 - 1),
        ends=rng.random() < 0.1,
    )


def test_closing_ends_the_session_without_an_answer() -> None:
    tokenizer = TextTokenizer(tokenizers_zoo.build("gpt2"))
    model = nodes.served(models_zoo.build("llama"), tokenizer, max_sessions=1)

    def requests() -> Iterator[VerifyRequest]:
        spec = GenerationSpec(prompt=Prompt(text="x"), stop=StopConditions(ignore_eos=True))
        yield VerifyRequest(open=Open(protocol_revision=PROTOCOL_REVISION, spec=spec))
        yield VerifyRequest(close=Close())

    with nodes.verify_node(model) as verify, grpc.insecure_channel(verify) as channel:
        stub = VerificationServiceStub(channel)
        for _ in range(3):  # the only place is free again each time
            kinds = [r.WhichOneof("message") for r in stub.Verify(requests(), timeout=60)]
            assert kinds[0] == "opened"
            assert "finished" not in kinds
