"""How answers end, what they report, and what a seed decides: through both nodes, with drafts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from anydraft import Client
from anydraft.text.detokenizer import StreamingDetokenizer
from anydraft.text.tokenizer import TextTokenizer
from tests import models_zoo, nodes, tokenizers_zoo
from tests.greedy import decided_answer, generate
from tests.integration.drafters import KnowingDrafter
from tests.integration.test_exact import text_of
from tests.sampled import decided_seeds, is_decided

PROMPT = "The verifier checks"


@dataclass
class Pair:
    model: PreTrainedModel
    tokenizer: TextTokenizer
    alone: Client
    """The verify node's own answers, no drafts."""
    assisted: Client
    """The same through a draft node."""
    drafter: KnowingDrafter

    @property
    def prompt_ids(self) -> list[int]:
        return self.tokenizer.encode(PROMPT, add_special_tokens=True)

    def ask(self, **options: Any) -> tuple[Any, Any]:
        """Alone, then assisted by a drafter that expects what came out alone."""
        settings = {"max_new_tokens": 48, "timeout": 60, **options}
        alone = self.alone.generate(PROMPT, **settings).result()
        self.drafter.truths[PROMPT] = text_of(self.tokenizer, alone.token_ids)
        return alone, self.assisted.generate(PROMPT, **settings).result()


@pytest.fixture(params=["gpt2", "gemma"], scope="module")
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    tokenizer = TextTokenizer(tokenizers_zoo.build(request.param))
    model = _decided_model(tokenizer)
    drafter = KnowingDrafter({}, error_rate=0.2)
    with (
        nodes.verify_node(nodes.served(model, tokenizer)) as verify,
        nodes.draft_node(drafter, verify) as draft,
        Client(verify) as alone,
        Client(draft) as assisted,
    ):
        yield Pair(model, tokenizer, alone, assisted, drafter)


def _decided_model(tokenizer: TextTokenizer) -> PreTrainedModel:
    """With an answer to PROMPT that does not depend on the machine's rounding, and without end."""
    prompt_ids = tokenizer.encode(PROMPT, add_special_tokens=True)
    for seed in count(3):
        model = models_zoo.build("llama", seed=seed)
        model.generation_config.eos_token_id = None
        if decided_answer(model, prompt_ids, max_new_tokens=48) is not None:
            return model
    raise AssertionError


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 20},
        {"temperature": 1.3, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.3},
        {"temperature": 0.9, "presence_penalty": 0.6, "frequency_penalty": 0.4},
        {"temperature": 1.0, "logit_bias": {7: 4.0, 9: -4.0}},
    ],
    ids=str,
)
def test_a_seed_decides_the_answer_whatever_is_drafted(pair: Pair, options: dict) -> None:
    accepted = 0
    for seed in islice(decided_seeds(pair.model, pair.prompt_ids, 48, **options), 3):
        alone, assisted = pair.ask(seed=seed, **options)
        assert assisted.token_ids == alone.token_ids
        assert assisted.seed == alone.seed == seed
        accepted += assisted.stats.accepted
    # Not in each answer: random text is seldom encoded as the ids that it came from.
    assert accepted > 0
    answers = {pair.ask(seed=seed, **options)[0].token_ids for seed in range(10, 14)}
    assert len(answers) == 4


def test_an_unset_seed_is_chosen_and_named(pair: Pair) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 24}
    first = pair.alone.generate(PROMPT, **options).result()
    while not is_decided(pair.model, pair.prompt_ids, 24, temperature=1.0, seed=first.seed):
        first = pair.alone.generate(PROMPT, **options).result()
    again, assisted = pair.ask(seed=first.seed, **options)
    assert again.token_ids == assisted.token_ids == first.token_ids
    other = pair.alone.generate(PROMPT, **options).result()
    assert other.seed != first.seed


def test_every_end_of_sequence_id_ends_the_answer(pair: Pair) -> None:
    """As in generate: the id is the last one, also when it falls into an accepted block."""
    long = generate(pair.model, pair.prompt_ids, max_new_tokens=48)
    ends = [long[5], long[17]]
    truth = generate(pair.model, pair.prompt_ids, max_new_tokens=48, eos_token_id=ends)
    with _eos(pair.model, ends):
        eos_pair = nodes.served(pair.model, pair.tokenizer)
    drafter = KnowingDrafter({PROMPT: text_of(pair.tokenizer, long)}, error_rate=0.0)
    with (
        nodes.verify_node(eos_pair) as verify,
        nodes.draft_node(drafter, verify) as draft,
        Client(verify) as alone,
        Client(draft) as assisted,
    ):
        for client in (alone, assisted):
            answer = client.generate(PROMPT, max_new_tokens=48).result()
            assert list(answer.token_ids) == truth
            assert answer.finish_reason == "eos"
            assert answer.text == visible_text(pair.tokenizer, truth[:-1])
            further = client.generate(PROMPT, max_new_tokens=48, ignore_eos=True).result()
            assert list(further.token_ids) == long
            assert further.finish_reason == "length"


class _eos:  # noqa: N801
    def __init__(self, model: PreTrainedModel, ids: list[int]) -> None:
        self._config, self._ids = model.generation_config, ids

    def __enter__(self) -> None:
        self._config.eos_token_id = self._ids

    def __exit__(self, *_: object) -> None:
        # The served model reads the ids once, when it is made.
        self._config.eos_token_id = None


def test_stop_strings_cut_text_and_ids(pair: Pair) -> None:
    whole, _ = pair.ask()
    # A special token in the middle, which users do not see, would make it another text.
    internal = StreamingDetokenizer(pair.tokenizer, keep_special=True).push(whole.token_ids)
    specials = "|".join(map(re.escape, tokenizers_zoo.SPECIAL))
    plain = max(re.split(specials, internal), key=len)
    for begin, size in ((3, 1), (7, 3), (12, 6)):
        stop = plain[begin : begin + size]
        at = whole.text.find(stop)
        for answer in pair.ask(stop=[stop, "never said, that"]):
            assert answer.text == whole.text[:at]
            assert answer.finish_reason == "stop"
            assert answer.stop == stop
            ids = list(answer.token_ids)
            assert ids == list(whole.token_ids[: len(ids)])
            assert stop in certain_text(pair.tokenizer, ids)
            assert stop not in certain_text(pair.tokenizer, ids[:-1])


def test_stop_strings_may_name_special_tokens(pair: Pair) -> None:
    """As in generate: `<|im_start|>`, which is no end of this model, ends the answer."""
    special = "<|im_start|>"
    token_id = pair.tokenizer.encode(special)[-1]
    assert pair.tokenizer.is_special(token_id)
    for answer in pair.ask(stop=[special], logit_bias={token_id: 100.0}, temperature=0.0):
        assert answer.finish_reason == "stop"
        assert answer.stop == special
        assert answer.token_ids == (token_id,)
        assert answer.text == ""
    whole, _ = pair.ask(logit_bias={token_id: 100.0}, temperature=0.0)
    assert set(whole.token_ids) == {token_id}


def visible_text(tokenizer: TextTokenizer, ids: Sequence[int]) -> str:
    """What the reader is to get for `ids`: special tokens are not text."""
    return text_of(tokenizer, [i for i in ids if not tokenizer.is_special(i)])


def certain_text(tokenizer: TextTokenizer, ids: Sequence[int]) -> str:
    """What is announced after `ids`: a run of byte tokens may still turn out to be no text."""
    return StreamingDetokenizer(tokenizer, keep_special=False).push(ids)


def test_text_that_may_become_a_stop_string_is_held_back(pair: Pair) -> None:
    whole, _ = pair.ask()
    stop = whole.text[10:14] + "but not this"
    for answer in pair.ask(stop=stop):
        assert answer.text == whole.text
        assert answer.finish_reason == "length"


@pytest.mark.parametrize("limit", [1, 2, 7, 48])
def test_length_limits_are_exact(pair: Pair, limit: int) -> None:
    for answer in pair.ask(max_new_tokens=limit):
        assert len(answer.token_ids) == limit
        assert answer.finish_reason == "length"


def test_the_context_is_a_limit_too() -> None:
    tokenizer = TextTokenizer(tokenizers_zoo.build("gpt2"))
    model = models_zoo.build("gpt2")
    prompt = "word " * 240
    room = 512 - len(tokenizer.encode(prompt))
    assert 0 < room < 400
    with nodes.verify_node(nodes.served(model, tokenizer)) as verify, Client(verify) as client:
        answer = client.generate(prompt, ignore_eos=True, timeout=120).result()
        assert len(answer.token_ids) == room
        assert answer.finish_reason == "length"


def test_streamed_text_is_the_text(pair: Pair) -> None:
    stream = pair.assisted.generate(PROMPT, max_new_tokens=48, temperature=1.0, seed=4)
    events = list(stream)
    result = stream.result()
    assert "".join(event.text for event in events) == result.text
    assert [i for event in events for i in event.token_ids] == list(result.token_ids)
    assert result.text == visible_text(pair.tokenizer, result.token_ids)


def test_logprobs_are_the_targets(pair: Pair) -> None:
    for answer in pair.ask(logprobs=3, temperature=0.8, seed=9, max_new_tokens=12):
        ids = [*pair.prompt_ids, *answer.token_ids]
        with torch.inference_mode():
            logits = pair.model(input_ids=torch.tensor([ids])).logits[0].double()
        want = torch.log_softmax(logits, -1)[len(pair.prompt_ids) - 1 : -1]
        assert len(answer.logprobs) == len(answer.token_ids)
        for row, token_id, got in zip(want, answer.token_ids, answer.logprobs, strict=True):
            assert got.logprob == pytest.approx(row[token_id].item(), abs=1e-4)
            assert [t.token_id for t in got.top] == row.topk(3).indices.tolist()


def test_the_statistics_add_up(pair: Pair) -> None:
    rounds = []
    for _ in range(4):
        alone, assisted = pair.ask()
        assert alone.stats.drafted == alone.stats.draft_rounds == 0
        assert alone.stats.rounds == alone.stats.completion_tokens == 48
        stats = assisted.stats
        assert stats.prompt_tokens == len(pair.prompt_ids)
        assert stats.accepted <= stats.drafted
        assert stats.completion_tokens == 48 <= stats.accepted + stats.rounds
        assert stats.sent_bytes > 0
        assert stats.received_bytes > 0
        rounds.append(stats.rounds)
    # On a busy machine, all drafts of an answer may come too late.
    assert min(rounds) < 48


def test_sampled_answers_follow_the_targets_distribution() -> None:
    """First and second token over many seeds, with drafts, on a vocabulary of eight."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        initializer_range=0.5,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config).float().eval()
    tokenizer = TextTokenizer(_letters())
    prompt_ids = tokenizer.encode("ab")
    exact = _pair_probabilities(model, prompt_ids)
    drafter = KnowingDrafter({"ab": "acgb"}, error_rate=0.3)
    draws = 1200
    with (
        nodes.verify_node(nodes.served(model, tokenizer)) as verify,
        nodes.draft_node(drafter, verify) as draft,
        Client(draft) as client,
        ThreadPoolExecutor(4) as pool,
    ):

        def one(seed: int) -> tuple[int, ...]:
            settings = {"max_new_tokens": 2, "temperature": 1.0, "seed": seed, "timeout": 60}
            return client.generate("ab", **settings).result().token_ids

        counts = Counter(pool.map(one, range(draws)))
    expected = {pair: p * draws for pair, p in exact.items() if p * draws >= 5}
    rare = draws - sum(expected.values())
    statistic = sum((counts[pair] - e) ** 2 / e for pair, e in expected.items())
    if rare > 0:
        seen = draws - sum(counts[pair] for pair in expected)
        statistic += (seen - rare) ** 2 / rare
    freedom = len(expected)
    # About the 99.99 % quantile (Wilson and Hilferty).
    limit = freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit


def _letters() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate("abcdefgh")}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair_probabilities(
    model: Callable[..., Any], prompt_ids: list[int]
) -> dict[tuple[int, int], float]:
    with torch.inference_mode():
        first = torch.softmax(model(torch.tensor([prompt_ids])).logits[0, -1].double(), -1)
        nexts = [
            torch.softmax(model(torch.tensor([[*prompt_ids, i]])).logits[0, -1].double(), -1)
            for i in range(8)
        ]
    return {(i, j): float(first[i] * nexts[i][j]) for i in range(8) for j in range(8)}
