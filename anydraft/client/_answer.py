"""What an answer is made of, as the SDK shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["eos", "stop", "length"]
"""eos: the model ended its answer. stop: a stop string appeared. length: the limit was reached."""


@dataclass(frozen=True, slots=True)
class AlternativeToken:
    """One of the likeliest tokens at a position."""

    token_id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token of the answer was.

    Natural logarithms, of the target's own distribution before penalties and temperature.
    """

    token_id: int
    logprob: float
    top: tuple[AlternativeToken, ...] = ()
    """As many as `logprobs` asked for, likeliest first."""


@dataclass(frozen=True, slots=True)
class TextEvent:
    """A piece of the answer: whole characters, special tokens and the stop string left out."""

    text: str
    """May be empty, while a character is unfinished or a stop string may be beginning."""
    token_ids: tuple[int, ...]
    """The target's ids; they may run ahead of the text."""
    drafted_chars: int = 0
    """How many leading characters of `text` an assistant drafted and the target accepted."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids` when asked for, else empty."""

    @property
    def drafted_text(self) -> str:
        """The leading part of `text` that was drafted and accepted."""
        return self.text[: self.drafted_chars]


@dataclass(frozen=True, slots=True)
class Stats:
    """What one answer took. Tokens are the target's; each machine measures its own times."""

    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, that the verifier had not to compute: an earlier answer had left them."""
    completion_tokens: int
    resumes: int
    """How often a verify node went on with what another one had begun, or the same one again."""
    rounds: int
    """Steps of the target in which this answer grew."""
    draft_rounds: int
    """Of those, the steps that had draft tokens to check."""
    drafted: int
    """Draft tokens that the target checked."""
    accepted: int
    """Of those, the tokens that the target would have said itself."""
    stale_pieces: int
    """Draft pieces dropped when they came: too late, contradicted, or hanging nowhere."""
    text_bytes: int
    prefill_ms: float
    """On the verifier: until the first token, queueing included."""
    verify_ms: float
    """On the verifier: later steps."""
    wait_ms: float
    """On the verifier: waiting for drafts."""
    sent_pieces: int
    """By the draft node: assistant tokens sent."""
    draft_ms: float
    """On the draft node: drafting."""
    sent_bytes: int
    """Message bytes from the draft node to the verifier."""
    received_bytes: int
    """Message bytes from the verifier to the draft node."""
    time_to_first_text_s: float | None
    """In this process, from the start of the call; None for an answer without text."""
    total_s: float
    """In this process, from the start of the call to the end of the answer."""

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted per drafted token; None when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def tokens_per_round(self) -> float | None:
        """Tokens of the answer per step of the target; 1 without drafts, None without steps."""
        return self.completion_tokens / self.rounds if self.rounds else None

    @property
    def tokens_per_second(self) -> float:
        """Tokens of the answer over `total_s`."""
        return self.completion_tokens / self.total_s if self.total_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stop: str | None
    """The stop string that ended the answer."""
    seed: int
    """The seed in use; asking again with it gives the same answer."""
    model: str
    """The target that answered."""
    session_id: str
    logprobs: tuple[TokenLogprobs, ...]
    """One for each of `token_ids` when asked for, else empty."""
    stats: Stats
