"""One prompt of the demo, asked of the target alone and with drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anydraft.cli.demo_report import Parting, Row
from anydraft.client import Client, GenerationResult, Stream

if TYPE_CHECKING:
    from rich.console import Console

ANSWER_TIMEOUT_S = 600.0


def drafted_style(console: Console) -> str:
    """How accepted drafts are shown: where colours are not wanted, underlined."""
    return "underline" if console.no_color else "green"


def compare(
    prompt: str, max_new_tokens: int, target_only: Client, assisted: Client, console: Console
) -> Row:
    """Shows the assisted answer as it comes, then asks the target alone for the same."""
    with_drafts = _show(assisted, prompt, max_new_tokens, console)
    alone = _ask(target_only, prompt, max_new_tokens).result()
    stats = with_drafts.stats
    return Row(
        prompt=prompt,
        tokens=len(with_drafts.token_ids),
        target_only_rate=alone.stats.tokens_per_second,
        assisted_rate=stats.tokens_per_second,
        acceptance=stats.acceptance_rate or 0.0,
        tokens_per_round=stats.completion_tokens / max(stats.rounds, 1),
        wire_bytes=stats.sent_bytes + stats.received_bytes,
        parting=parting_of(prompt, alone.token_ids, with_drafts.token_ids, target_only),
    )


def parting_of(
    prompt: str, alone: Sequence[int], assisted: Sequence[int], target_only: Client
) -> Parting | None:
    """Asks the target once more, up to the first token that differs, and how likely both are."""
    if alone == assisted:
        return None
    pairs = enumerate(zip(alone, assisted, strict=False))
    index = next((i for i, (mine, theirs) in pairs if mine != theirs), None)
    if index is None:  # one goes on where the other ends
        return Parting(min(len(alone), len(assisted)), None)
    again = _ask(target_only, prompt, index + 1, logprobs=2).result()
    logprobs = {token.token_id: token.logprob for token in again.logprobs[index].top}
    mine, theirs = (logprobs.get(ids[index]) for ids in (alone, assisted))
    return Parting(index, None if mine is None or theirs is None else mine - theirs)


def _ask(
    client: Client, prompt: str, max_new_tokens: int, *, logprobs: int | None = None
) -> Stream:
    return client.generate(
        messages=[{"role": "user", "content": prompt}],
        max_new_tokens=max_new_tokens,
        temperature=0,
        logprobs=logprobs,
        timeout=ANSWER_TIMEOUT_S,
    )


def _show(client: Client, prompt: str, max_new_tokens: int, console: Console) -> GenerationResult:
    from rich.text import Text

    style = drafted_style(console)
    stream = _ask(client, prompt, max_new_tokens)
    for event in stream:
        own = event.text[len(event.drafted_text) :]
        shown = Text.assemble((event.drafted_text, style), own)
        console.print(shown, end="", soft_wrap=True)
    console.print("\n")
    return stream.result()
