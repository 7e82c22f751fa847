"""The `ModelRunner` of a simulated target."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from verify_node.runners.base import Row
from verify_node.simulated.peaked_logits import LogitsPool
from verify_node.simulated.script import Place, Script, Scripts, place_in
from verify_node.simulated.step_time import StepTime


class SimulatedCache:
    """A `SessionCache` of ids: what a real one would hold keys and values of."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._script: Script | None = None

    @property
    def length(self) -> int:
        return len(self.ids)

    def truncate(self, length: int) -> None:
        self.keep(length, ())

    def keep(self, length: int, slots: Sequence[int]) -> None:
        moved = [self.ids[length + slot] for slot in slots]
        del self.ids[length:]
        self.ids += moved
        if self._script is not None and len(self.ids) < len(self._script.prompt_ids):
            self._script = None

    def close(self) -> None:
        self.ids = []

    def place(self, scripts: Scripts) -> Place:
        """Of all that is held, at least the prompt. Its script is looked for once."""
        if self._script is None:
            self._script = scripts.find(self.ids)
        return place_in(self._script, self.ids)


class SimulatedRunner:
    """Lets the time of the step go by and says what was recorded. A row's tree is followed by path.

    What `forward` returns is valid until it is called again.
    """

    name = "simulated"
    takes_trees = True
    copy_of = None
    """A benchmark's prompts take the time that they took when its figures were recorded."""

    def __init__(self, scripts: Scripts, time_of: StepTime, vocabulary_size: int) -> None:
        self._scripts = scripts
        self._time = time_of
        self._logits = LogitsPool(vocabulary_size)

    def new_cache(self, max_tokens: int) -> SimulatedCache:
        del max_tokens  # nothing is reserved
        return SimulatedCache()

    def forward(self, rows: Sequence[Row]) -> list[torch.Tensor]:
        started = time.perf_counter()
        said = [self._say(row) for row in rows]
        self._logits.take([token_id for of_row in said for token_id in of_row])
        results: list[torch.Tensor] = []
        start = 0
        for of_row in said:
            results.append(self._logits.rows(start, start + len(of_row)))
            start += len(of_row)
        tokens = sum(row.num_logits for row in rows)
        ms = self._time.ms(tokens, sum(len(row.token_ids) for row in rows) - tokens)
        _sleep_until(started + ms / 1e3)
        return results

    def _say(self, row: Row) -> list[int]:
        """What follows each of the last `num_logits` tokens of the row."""
        cache = row.cache
        if not isinstance(cache, SimulatedCache):
            raise TypeError(f"the simulated runner cannot use a {type(cache).__name__}")
        if not row.num_logits:
            cache.ids += row.token_ids
            return []
        if row.parents is None:
            return self._say_chain(cache, row)
        root = cache.place(self._scripts)
        # As in a chain: the first may be the last of the prompt.
        cache.ids.append(row.token_ids[0])
        places = [cache.place(self._scripts)]
        for token_id, parent in zip(row.token_ids[1:], row.parents[1:], strict=True):
            places.append((root if parent < 0 else places[parent]).after(token_id))
        cache.ids += row.token_ids[1:]
        return [place.next_id() for place in places[len(places) - row.num_logits :]]

    def _say_chain(self, cache: SimulatedCache, row: Row) -> list[int]:
        """Also for prompts, whose script is known only with their last token."""
        first = len(row.token_ids) - row.num_logits
        cache.ids += row.token_ids[: first + 1]
        place = cache.place(self._scripts)
        said = [place.next_id()]
        for token_id in row.token_ids[first + 1 :]:
            place = place.after(token_id)
            said.append(place.next_id())
        cache.ids += row.token_ids[first + 1 :]
        return said


def _sleep_until(due: float) -> None:
    if (left := due - time.perf_counter()) > 0:
        time.sleep(left)
