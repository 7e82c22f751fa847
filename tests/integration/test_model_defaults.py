"""What a model itself asks for, and what happens when its arithmetic breaks: through both nodes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from anydraft import Client
from anydraft.errors import ContextFullError, InternalError
from anydraft.text.tokenizer import TextTokenizer
from tests import models_zoo, nodes, tokenizers_zoo
from tests.greedy import generate
from tests.integration.drafters import KnowingDrafter
from tests.integration.test_exact import text_of

PROMPT = "The verifier checks"
NEW_TOKENS = 32


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(tokenizers_zoo.build("gpt2"))


@pytest.fixture
def model() -> PreTrainedModel:
    built = models_zoo.build("llama", seed=3)
    built.generation_config.eos_token_id = None
    return built


@contextmanager
def clients(
    model: PreTrainedModel, tokenizer: TextTokenizer, truth: list[int], **settings: Any
) -> Iterator[tuple[Client, Client]]:
    """Of the verify node alone, and of a draft node that expects `truth`. `settings` are the
    model's generation_config's.
    """
    kept = copy.deepcopy(model.generation_config)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    served = nodes.served(model, tokenizer)
    model.generation_config = kept
    drafter = KnowingDrafter({PROMPT: text_of(tokenizer, truth)}, error_rate=0.0)
    with (
        nodes.verify_node(served) as verify,
        nodes.draft_node(drafter, verify) as draft,
        Client(verify) as alone,
        Client(draft) as assisted,
    ):
        yield alone, assisted


def test_the_models_own_stop_strings_end_the_answer(
    model: PreTrainedModel, tokenizer: TextTokenizer
) -> None:
    prompt_ids = tokenizer.encode(PROMPT, add_special_tokens=True)
    long = generate(model, prompt_ids, max_new_tokens=NEW_TOKENS)
    text = text_of(tokenizer, long)
    own, asked = text[14:17], text[5:7]
    assert text.find(asked) < text.find(own)
    truth = generate(
        model,
        prompt_ids,
        max_new_tokens=NEW_TOKENS,
        stop_strings=[own],
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizers_zoo.build("gpt2")),
    )
    assert len(truth) < NEW_TOKENS
    options = {"max_new_tokens": NEW_TOKENS, "timeout": 60}
    for stop_strings in ([own, "never said, that"], own):
        with clients(model, tokenizer, long, stop_strings=stop_strings) as both:
            for client in both:
                answer = client.generate(PROMPT, **options).result()
                assert list(answer.token_ids) == truth
                assert (answer.finish_reason, answer.stop) == ("stop", own)
                assert answer.text == text[: text.find(own)]
                # The request's own strings come on top, and neither hides the other.
                for stop, first in ((asked, asked), ("never said", own)):
                    assert client.generate(PROMPT, stop=stop, **options).result().stop == first
                further = client.generate(PROMPT, ignore_eos=True, **options).result()
                assert list(further.token_ids) == long


def test_the_models_own_length_counts_the_prompt(
    model: PreTrainedModel, tokenizer: TextTokenizer
) -> None:
    prompt_ids = tokenizer.encode(PROMPT, add_special_tokens=True)
    long = generate(model, prompt_ids, max_new_tokens=NEW_TOKENS)
    with clients(model, tokenizer, long, max_length=len(prompt_ids) + 7) as both:
        for client in both:
            answer = client.generate(PROMPT, timeout=60).result()
            assert list(answer.token_ids) == long[:7]
            assert answer.finish_reason == "length"
            asked = client.generate(PROMPT, max_new_tokens=12, timeout=60).result()
            assert list(asked.token_ids) == long[:12]
    with clients(model, tokenizer, long, max_length=len(prompt_ids)) as both:
        for client in both:
            with pytest.raises(ContextFullError, match="max_new_tokens"):
                client.generate(PROMPT, timeout=60).result()
            assert client.generate(PROMPT, max_new_tokens=3, timeout=60).result().text


def test_a_forced_end_is_the_last_token_that_fits(
    model: PreTrainedModel, tokenizer: TextTokenizer
) -> None:
    prompt_ids = tokenizer.encode(PROMPT, add_special_tokens=True)
    long = generate(model, prompt_ids, max_new_tokens=NEW_TOKENS)
    truth = generate(model, prompt_ids, max_new_tokens=9, forced_eos_token_id=33)
    with clients(model, tokenizer, long, forced_eos_token_id=33) as both:
        for client in both:
            answer = client.generate(PROMPT, max_new_tokens=9, timeout=60).result()
            assert list(answer.token_ids) == truth == [*long[:8], 33]


@pytest.mark.parametrize("options", [{}, {"temperature": 0.01, "seed": 1}], ids=["greedy", "drawn"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf], ids=str)
def test_logits_that_are_not_finite_end_the_answer_with_an_error(
    model: PreTrainedModel, tokenizer: TextTokenizer, bad: float, options: dict
) -> None:
    """A token of the answer breaks everything that follows it, and only that: also the positions
    before it, in a step that checks it as a draft, and also answers that do not come to it.
    """
    prompt_ids = tokenizer.encode(PROMPT, add_special_tokens=True)
    long = generate(model, prompt_ids, max_new_tokens=NEW_TOKENS)
    at = next(i for i, token_id in enumerate(long) if i > 4 and token_id not in prompt_ids)
    at = long.index(long[at])
    with clients(model, tokenizer, long) as both:
        model.get_input_embeddings().weight.data[long[at]] = bad
        for client in both:
            stream = client.generate(PROMPT, max_new_tokens=NEW_TOKENS, timeout=60, **options)
            said: list[int] = []
            with pytest.raises(InternalError, match="--dtype") as caught:
                said.extend(token_id for event in stream for token_id in event.token_ids)
            assert caught.value.reason == "LOGITS_NOT_FINITE"
            assert said == long[: at + 1]
            short = client.generate(PROMPT, max_new_tokens=at + 1, timeout=60, **options).result()
            assert list(short.token_ids) == long[: at + 1]
