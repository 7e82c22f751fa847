"""Who gets a place on the node: so many sessions, and so many tokens in their KV caches."""

from __future__ import annotations

from anydraft.errors import ResourceExhaustedError

_RETRY_AFTER_S = 1.0


class Admission:
    """Counts what open sessions may come to hold. A session has its place from `admit` to
    `release`, which is when its cache has been freed."""

    def __init__(self, *, max_sessions: int, kv_tokens: int) -> None:
        """`kv_tokens`: what all sessions together may hold, prompts and answers."""
        self._max_sessions = max_sessions
        self._max_kv_tokens = kv_tokens
        self.num_sessions = 0
        self.kv_tokens = 0

    def admit(self, kv_tokens: int) -> None:
        """Raises ResourceExhaustedError: KV_TOO_SMALL for ever, NODE_FULL for now."""
        if kv_tokens > self._max_kv_tokens:
            raise ResourceExhaustedError(
                f"prompt and answer may take {kv_tokens} tokens, but the KV cache holds "
                f"{self._max_kv_tokens}. Ask for fewer new tokens, or start the node with a "
                "larger --kv-tokens.",
                reason="KV_TOO_SMALL",
            )
        full = self.num_sessions >= self._max_sessions
        if full or self.kv_tokens + kv_tokens > self._max_kv_tokens:
            raise ResourceExhaustedError(
                f"the node is full: {self.num_sessions} sessions hold {self.kv_tokens} of "
                f"{self._max_kv_tokens} KV tokens, this one needs {kv_tokens}. Try again shortly, "
                "or start the node with larger --max-sessions and --kv-tokens.",
                reason="NODE_FULL",
                retry_after_s=_RETRY_AFTER_S,
            )
        self.num_sessions += 1
        self.kv_tokens += kv_tokens

    def release(self, kv_tokens: int) -> None:
        self.num_sessions -= 1
        self.kv_tokens -= kv_tokens
