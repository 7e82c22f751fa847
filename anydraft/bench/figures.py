"""The figures of one row of the report, as they stand in the JSON. Rounded only when shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from anydraft.bench import measures
from anydraft.bench.arms import ASSISTED, PEER_ALONE, PEER_ASSISTED, TARGET_ONLY
from anydraft.bench.measures import Difference
from anydraft.bench.plan import Conditions
from anydraft.bench.runs import Outcome, Run

Figures = dict[str, Any]


def figures_of(conditions: Conditions, run: Run, parted: Sequence[Difference]) -> Figures:
    """`parted`: of all answers that went another way than they should."""
    outcomes = run.outcomes
    smallest = measures.smallest_gain(outcomes)
    figures = _conditions(conditions) | _group(outcomes)
    figures |= {
        "gain": _gain(run),
        "smallest_gain_prompt": smallest[1] if smallest else None,
        "ids_equal": not parted,
        "differences": [asdict(difference) for difference in parted],
        "categories": {
            category: _group(of_category)
            for category, of_category in measures.by_category(outcomes).items()
        },
        "arms": _arms(run),
        "round": {
            arm: asdict(measures.rounds(measures.of_arm(outcomes, arm)))
            for arm in (TARGET_ONLY, ASSISTED)
        },
        "answers": sum(len(o.answers.get(ASSISTED, ())) for o in outcomes),
        "incomplete_measurements": run.incomplete,
        "missed_choices": run.missed,
        "tries": run.tries,
    }
    return figures | _peers(outcomes)


def _conditions(conditions: Conditions) -> Figures:
    step = conditions.step
    return {
        "step_ms": step.step_ms if step else None,
        "slope": step.slope if step else None,
        "piece_ms": conditions.piece_ms,
        "round_trip_ms": conditions.round_trip_ms,
        "sessions": conditions.sessions,
        "edges": conditions.edges,
    }


def _group(outcomes: Sequence[Outcome]) -> Figures:
    """What is reported of a category and of all prompts alike."""
    drafted = measures.rounds(measures.of_arm(outcomes, ASSISTED))
    spread = measures.spread(outcomes)
    smallest = measures.smallest_gain(outcomes)
    return {
        "prompts": len(outcomes),
        "gain": measures.gain(outcomes),
        "gain_spread": asdict(spread) if spread else None,
        "decoding_gain": measures.decoding_gain(outcomes),
        "smallest_gain": smallest[0] if smallest else None,
        "tokens_per_step": drafted.tokens_per_step,
        "acceptance": drafted.acceptance,
        "share_of_bound": measures.share_of_bound(outcomes),
        "bytes_per_accepted_token": drafted.bytes_per_accepted_token,
        "time_to_first_token_ms": {
            arm: measures.first_token_ms(measures.of_arm(outcomes, arm))
            for arm in (TARGET_ONLY, ASSISTED)
        },
        "first_token_ratio": measures.ratio(
            *(
                measures.first_token_ms(measures.of_arm(outcomes, arm))
                for arm in (ASSISTED, TARGET_ONLY)
            )
        ),
    }


def _gain(run: Run) -> float | None:
    """With several sessions, of what all of them got while all were busy."""
    if not run.busy:
        return measures.gain(run.outcomes)
    rates = [measures.busy_rate(run.busy.get(arm, ())) for arm in (ASSISTED, TARGET_ONLY)]
    return measures.ratio(*rates)


def _arms(run: Run) -> Mapping[str, Figures]:
    """Tokens per second: of whole answers, and behind the first token; with several sessions of
    each of them, and of all together."""
    names = {arm for outcome in run.outcomes for arm in outcome.answers}
    found: dict[str, Figures] = {}
    for arm in (TARGET_ONLY, ASSISTED, PEER_ALONE, PEER_ASSISTED):
        if arm not in names:
            continue
        answers = measures.of_arm(run.outcomes, arm)
        found[arm] = {
            "rate": measures.whole(answers).rate,
            "decoding_rate": measures.decoding(answers).rate,
        }
        if arm in run.busy:
            found[arm]["rate_of_all_sessions"] = measures.busy_rate(run.busy[arm])
    return found


def _peers(outcomes: Sequence[Outcome]) -> Figures:
    """Against transformers, where that was asked: assisted here over its assisted generation, and
    what that gains over `generate` alone."""
    if not measures.of_arm(outcomes, PEER_ASSISTED):
        return {}
    return {
        "peer_gain": measures.gain(outcomes, ASSISTED, PEER_ASSISTED),
        "peer_own_gain": measures.gain(outcomes, PEER_ASSISTED, PEER_ALONE),
        "gain_over_peer_alone": measures.gain(outcomes, ASSISTED, PEER_ALONE),
    }
