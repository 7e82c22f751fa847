"""A whole run: every combination of conditions, one after another, each with all arms in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from anydraft.bench import measures
from anydraft.bench.arms import ASSISTED, TARGET_ONLY, Arm, NodeArm
from anydraft.bench.asking import margin_at
from anydraft.bench.figures import Figures, figures_of
from anydraft.bench.measures import Difference
from anydraft.bench.memory import Memory
from anydraft.bench.plan import Conditions, Pair, Recorded, Sweep
from anydraft.bench.runs import Lack, NoLack, Outcome, Run, run_one_by_one, run_side_by_side
from anydraft.bench.site import Say, Site
from anydraft.bench.tasks import Task

_WARM_UP = Task("", "Hello", 4)


@dataclass(frozen=True, slots=True)
class Watch:
    """Whom a run tells how it goes."""

    say: Say
    row_begins: Callable[[Conditions], None]
    heard: Callable[[Outcome], None]
    row_done: Callable[[Figures], None]


async def measure(
    pair: Pair,
    folder: Path,
    sweep: Sweep,
    tasks: Sequence[Task],
    watch: Watch,
    *,
    repeats: int = 1,
    recorded: Recorded | None = None,
    peers: Sequence[Arm] = (),
) -> list[Figures]:
    """One row for each combination. `folder`: the assistant, as ONNX; `peers` are asked as well."""
    rows = []
    with Site(pair, folder, recorded, watch.say) as site:
        for step in sweep.steps:
            site.start_target(step)
            for conditions in sweep.of(step):
                network, drafts = site.start_around(conditions)
                watch.row_begins(conditions)
                async with AsyncExitStack() as stack:
                    arms = [NodeArm(TARGET_ONLY, [network]), NodeArm(ASSISTED, drafts)]
                    for arm in arms:
                        stack.push_async_callback(arm.close)
                    lack = Memory(recorded.notes) if recorded else NoLack()
                    await _warm_up(arms, conditions)
                    await lack.filled()
                    run = await _run([*arms, *peers], tasks, conditions, watch, repeats, lack)
                parted = await _parted(run, site.verify_address)
                figures = figures_of(conditions, run, parted)
                rows.append(figures)
                watch.row_done(figures)
    return rows


async def _warm_up(arms: Sequence[Arm], conditions: Conditions) -> None:
    """The first answer of every node is slower: connections, imports, caches."""
    for arm in arms:
        for _ in range(conditions.num_draft_nodes):
            await arm.ask(_WARM_UP)


async def _run(
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    conditions: Conditions,
    watch: Watch,
    repeats: int,
    lack: Lack,
) -> Run:
    if conditions.sessions == 1:
        return await run_one_by_one(tasks, arms, repeats=repeats, lack=lack, heard=watch.heard)
    return await run_side_by_side(
        tasks,
        arms,
        conditions.sessions,
        repeats=repeats,
        lack=lack,
        heard=watch.heard,
    )


async def _parted(run: Run, verify_address: str) -> list[Difference]:
    """Every difference, with the target's own margin there."""
    found = []
    for outcome, difference in measures.differences(run.outcomes):
        ids = outcome.answers[difference.arm][0].ids
        margin = await margin_at(verify_address, outcome.task, ids, difference.index)
        found.append(replace(difference, margin=margin))
    return found
