"""Which pool a command line asks for."""

from __future__ import annotations

import pytest

from verify_node import __main__ as command
from verify_node.pool_flags import pool_of


@pytest.mark.parametrize(
    ("flags", "in_turn"),
    [
        (["--drafters", "127.0.0.1:9"], True),
        (["--drafters", "127.0.0.1:9", "--drafters", "edge.example:9"], False),
        (["--drafters", "127.0.0.1:9", "--same-machine", "no"], False),
        (["--drafters", "edge.example:9", "--same-machine", "yes"], True),
    ],
)
async def test_drafters_beside_it_are_known_by_their_addresses(
    flags: list[str], in_turn: bool
) -> None:
    pool = pool_of(command.parser().parse_args(["--model", "x", *flags]))
    assert pool is not None
    assert pool.in_turn is in_turn


async def test_without_drafters_there_is_no_pool() -> None:
    assert pool_of(command.parser().parse_args(["--model", "x"])) is None


def test_an_address_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parser().parse_args(["--model", "x", "--drafters", "edge"])
    assert "has no port" in capsys.readouterr().err
