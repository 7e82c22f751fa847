"""Loading beside an event loop."""

from __future__ import annotations

import gc

import pytest

from anydraft.rpc.loading import load_aside


async def test_what_is_loaded_is_not_walked_by_later_collections() -> None:
    loaded = await load_aside(lambda: [[index] for index in range(1000)])
    try:
        assert len(loaded) == 1000
        assert gc.get_freeze_count() >= 1000
    finally:
        gc.unfreeze()


async def test_what_loading_raises_is_raised_here() -> None:
    def fail() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        await load_aside(fail)
