"""A `with` block closes once, and hides nothing."""

from __future__ import annotations

import pytest

from anydraft.closing import Closing


class Counted(Closing):
    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_block_has_the_object_itself_and_closes_it_once() -> None:
    made = Counted()
    with made as inside:
        assert inside is made
        assert made.closed == 0
    assert made.closed == 1


def test_what_a_block_raises_is_raised_after_it_was_closed() -> None:
    made = Counted()
    with pytest.raises(KeyError), made:
        raise KeyError
    assert made.closed == 1
