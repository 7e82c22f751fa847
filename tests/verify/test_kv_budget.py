"""From memory to tokens."""

from __future__ import annotations

import pytest

from anydraft.errors import InvalidRequestError
from tests import models_zoo
from verify_node.__main__ import _options, parser
from verify_node.load import _kv_tokens

BYTES_PER_TOKEN = 2 * 2 * 2 * 8 * 4
"""Of the tiny llama: keys and values, layers, heads that store them, their size, fp32."""


def test_a_budget_of_bytes_is_kept_in_whole_blocks() -> None:
    model = models_zoo.build("llama")
    for kv_bytes in (16 * BYTES_PER_TOKEN, 10**6):
        tokens = _kv_tokens(model, kv_bytes, 512)
        assert tokens % 16 == 0
        assert 0 <= kv_bytes - tokens * BYTES_PER_TOKEN < 16 * BYTES_PER_TOKEN


def test_a_budget_that_holds_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="--kv-bytes 4000") as error:
        _kv_tokens(models_zoo.build("llama"), 4000, 512)
    assert error.value.reason == "KV_TOO_SMALL"


def test_without_a_budget_there_is_room_for_one_context() -> None:
    assert _kv_tokens(models_zoo.build("llama"), None, 512) > 512
    assert _kv_tokens(models_zoo.build("llama"), None, 10**12) == 10**12


def test_flags() -> None:
    given = ["--max-waiting", "0", "--max-wait-s", "2.5", "--kv-bytes", str(10**11)]
    options = _options(parser().parse_args(["--model", "m", *given, "--no-prefix-cache"]))
    assert (options.max_waiting, options.max_wait_s) == (0, 2.5)
    assert (options.kv_bytes, options.kv_tokens) == (10**11, None)
    assert not options.keeps_prefixes
    assert _options(parser().parse_args(["--model", "m"])).keeps_prefixes
    with pytest.raises(SystemExit):
        parser().parse_args(["--model", "m", "--kv-bytes", "9", "--kv-tokens", "9"])
