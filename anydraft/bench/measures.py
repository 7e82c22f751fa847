"""From answers to figures. Rates are target tokens per second; a gain is a ratio of rates."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anydraft.bench.arms import ASSISTED, TARGET_ONLY, Answer
from anydraft.bench.runs import Busy, Outcome

_RESAMPLES = 2000
_SPREAD = (0.05, 0.95)
"""Of the resampled gains, the range that is reported."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Tokens, and the time that they took."""

    tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.seconds + other.seconds)

    @property
    def rate(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 else None


def whole(answers: Sequence[Answer]) -> Amount:
    """From each question to its last token."""
    return sum((Amount(len(a.ids), a.total_s) for a in answers), Amount())


def decoding(answers: Sequence[Answer]) -> Amount:
    """What came behind the first tokens, from when those had come."""
    return sum((Amount(len(a.ids) - a.num_first, a.total_s - a.first_s) for a in answers), Amount())


def ratio(above: float | None, below: float | None) -> float | None:
    """None where either is not known, or nothing can be divided."""
    return None if above is None or not below else above / below


def of_arm(outcomes: Sequence[Outcome], arm: str) -> list[Answer]:
    return [answer for outcome in outcomes for answer in outcome.answers.get(arm, ())]


def gain(outcomes: Sequence[Outcome], arm: str = ASSISTED, base: str = TARGET_ONLY) -> float | None:
    """All tokens over all seconds of the one arm, over those of the other."""
    return ratio(whole(of_arm(outcomes, arm)).rate, whole(of_arm(outcomes, base)).rate)


def decoding_gain(outcomes: Sequence[Outcome], arm: str = ASSISTED) -> float | None:
    """The same without prompts, and without what they cost."""
    base = decoding(of_arm(outcomes, TARGET_ONLY)).rate
    return ratio(decoding(of_arm(outcomes, arm)).rate, base)


def busy_rate(stretches: Sequence[Busy]) -> float | None:
    """Of all sessions together, while all of them had something to do."""
    seconds = sum(stretch.seconds for stretch in stretches)
    return sum(stretch.tokens for stretch in stretches) / seconds if seconds > 0 else None


@dataclass(frozen=True, slots=True)
class Spread:
    """How far a gain is known, given how much it differs from prompt to prompt."""

    low: float
    high: float
    """Between them, nine of ten resamples of the prompts."""
    quartiles: tuple[float, float, float]
    """Of the prompts' own gains."""


def spread(outcomes: Sequence[Outcome], arm: str = ASSISTED) -> Spread | None:
    """None with less than two prompts. The same outcomes always give the same numbers."""
    pairs = [
        (whole(o.answers[arm]), whole(o.answers[TARGET_ONLY]))
        for o in outcomes
        if o.answers.get(arm) and o.answers.get(TARGET_ONLY)
    ]
    if len(pairs) < 2:
        return None
    draw = random.Random(0)
    gains = []
    for _ in range(_RESAMPLES):
        picked = draw.choices(pairs, k=len(pairs))
        above = sum((pair[0] for pair in picked), Amount()).rate
        below = sum((pair[1] for pair in picked), Amount()).rate
        gains.append(ratio(above, below) or 0.0)
    gains.sort()
    low, high = (gains[int(share * (_RESAMPLES - 1))] for share in _SPREAD)
    own = [ratio(above.rate, below.rate) or 0.0 for above, below in pairs]
    first, middle, last = statistics.quantiles(own, n=4, method="inclusive")
    return Spread(low, high, (first, middle, last))


def smallest_gain(outcomes: Sequence[Outcome], arm: str = ASSISTED) -> tuple[float, str] | None:
    """Of any prompt, and the label of that prompt."""
    gains = [(gain([outcome], arm), outcome.task.label) for outcome in outcomes]
    known = [(value, label) for value, label in gains if value is not None]
    return min(known, default=None)


@dataclass(frozen=True, slots=True)
class Rounds:
    """What the nodes say of an arm's steps. Times are means of a step, in milliseconds."""

    tokens_per_step: float | None
    acceptance: float | None
    """Accepted of the draft tokens that were checked."""
    drafted_per_step: float | None
    forward_ms: float | None
    """In the model, with whoever else was in the same step."""
    waiting_ms: float | None
    """The target, for a draft."""
    rest_ms: float | None
    """What is left of the time between tokens: alignment, acceptance, the event loop, messages and
    their way to whoever asked. Not told apart from outside."""
    drafting_ms: float | None
    """The assistant at work; goes on beside all the others, so it is no part of their sum."""
    bytes_per_accepted_token: float | None
    """Between the nodes, both ways."""
    stale_per_step: float | None
    """Pieces of drafts that came to nothing before they were checked."""


def rounds(answers: Sequence[Answer]) -> Rounds:
    found = [(answer, answer.stats) for answer in answers if answer.stats is not None]
    stats = [s for _, s in found]
    steps = sum(s.rounds for s in stats)
    later_steps = sum(max(s.rounds - 1, 0) for s in stats)
    accepted = sum(s.accepted for s in stats)
    forward = sum(s.verify_ms for s in stats)
    # The wait before the first token is none: nothing is drafted before there is a prompt.
    waiting = sum(s.wait_ms for s in stats)
    between = sum((a.total_s - a.first_s) * 1e3 for a, _ in found)
    return Rounds(
        tokens_per_step=_share(sum(s.completion_tokens for s in stats), steps),
        acceptance=_share(accepted, sum(s.drafted for s in stats)),
        drafted_per_step=_share(sum(s.drafted for s in stats), steps),
        forward_ms=_share(forward, later_steps),
        waiting_ms=_share(waiting, later_steps),
        rest_ms=_share(between - forward - waiting, later_steps),
        drafting_ms=_share(sum(s.draft_ms for s in stats), steps),
        bytes_per_accepted_token=_share(
            sum(s.sent_bytes + s.received_bytes for s in stats), accepted
        ),
        stale_per_step=_share(sum(s.stale_pieces for s in stats), steps),
    )


def share_of_bound(outcomes: Sequence[Outcome]) -> float | None:
    """The gain of decoding over E·t_T/t_v: what as many tokens a step would bring if nothing but
    the model took time. t_T and t_v are what a step takes alone and with drafts."""
    alone = rounds(of_arm(outcomes, TARGET_ONLY))
    drafted = rounds(of_arm(outcomes, ASSISTED))
    if drafted.tokens_per_step is None or alone.tokens_per_step is None:
        return None
    step_ratio = ratio(alone.forward_ms, drafted.forward_ms)
    if step_ratio is None:
        return None
    bound = drafted.tokens_per_step / alone.tokens_per_step * step_ratio
    return ratio(decoding_gain(outcomes), bound)


def first_token_ms(answers: Sequence[Answer]) -> float | None:
    """The mean of the time to the first token."""
    return statistics.fmean(a.first_s * 1e3 for a in answers) if answers else None


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an answer first goes another way than it should."""

    prompt: str
    arm: str
    index: int
    """Of the first id that differs."""
    margin: float | None = None
    """By how many nats the target alone preferred its own id there; None where nobody knows."""


def differences(outcomes: Sequence[Outcome]) -> list[tuple[Outcome, Difference]]:
    """Of every answer that is not what was recorded, or else what the target alone said first; one
    for each prompt and arm. Arms that are no nodes of ours are not judged."""
    found = []
    for outcome in outcomes:
        alone = outcome.answers.get(TARGET_ONLY, [])
        wanted = outcome.task.expected or (alone[0].ids if alone else None)
        for arm in (TARGET_ONLY, ASSISTED):
            for answer in outcome.answers.get(arm, []):
                if wanted is not None and answer.ids != wanted:
                    index = first_difference(answer.ids, wanted)
                    found.append((outcome, Difference(outcome.task.label, arm, index)))
                    break
    return found


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def by_category(outcomes: Sequence[Outcome]) -> Mapping[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.task.category, []).append(outcome)
    return found


def _share(amount: float, of: float) -> float | None:
    return amount / of if of else None
