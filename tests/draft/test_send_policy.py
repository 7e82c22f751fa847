from __future__ import annotations

from draft_node.send_policy import SendPolicy


def measured(piece_ms: float, round_ms: float) -> SendPolicy:
    pacing = SendPolicy()
    for _ in range(20):
        pacing.drafted(piece_ms)
        pacing.answered(round_ms)
    return pacing


def group_size(pacing: SendPolicy, probability: float) -> int:
    expected, reach, size = 0.0, 1.0, 0
    while not size or not pacing.group_is_ready(size, expected, reach):
        size += 1
        reach *= probability
        expected += reach
    return size


def test_a_few_pieces_before_anything_is_measured() -> None:
    assert group_size(SendPolicy(), 0.9) == 4


def test_slow_rounds_are_worth_longer_drafts() -> None:
    sizes = [group_size(measured(8, round_ms), 0.8) for round_ms in (10, 50, 200, 800)]
    assert sizes == sorted(set(sizes))


def test_sure_drafts_are_longer() -> None:
    sizes = [group_size(measured(8, 200), p) for p in (0.4, 0.6, 0.8, 0.95)]
    assert sizes == sorted(set(sizes))


def test_the_size_is_where_tokens_per_time_are_highest() -> None:
    """Against trying all sizes, for pieces as likely as the next one is taken to be."""
    piece_ms, round_ms, p = 8.0, 150.0, 0.7

    def rate(size: int) -> float:
        tokens = 1 + sum(p**k for k in range(1, size + 1))
        return tokens / (size * piece_ms + round_ms)

    best = max(range(1, 30), key=rate)
    assert group_size(measured(piece_ms, round_ms), p) == best
