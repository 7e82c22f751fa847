"""Chat messages to prompt text, with a model's own template, exactly as transformers renders it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from anydraft.errors import InvalidRequestError
from anydraft.text.template_process import PROCESSES


class Message(Protocol):
    """`anydraft.v1.ChatMessage`, or anything shaped like it."""

    @property
    def role(self) -> str: ...
    @property
    def content(self) -> str: ...


def render_messages(
    messages: Sequence[Message], template: str | None, special_tokens: Mapping[str, str]
) -> tuple[str, bool]:
    """The prompt text, up to where the assistant's turn begins, and whether the special tokens of
    the model still have to be added (a template writes its own).

    Without a template the messages become "User: …", "Assistant: …" paragraphs. Raises
    InvalidRequestError when there are no messages, or the template refuses them or makes too much
    of them, and FailedPreconditionError when the template itself does not parse.
    """
    if not messages:
        raise InvalidRequestError(
            "The chat has no messages. Send at least one.", reason="PROMPT_EMPTY"
        )
    if template is None:
        return _render_plain(messages), True
    chat = [{"role": str(message.role), "content": str(message.content)} for message in messages]
    variables = {"messages": chat, "tools": None, "documents": None, "add_generation_prompt": True}
    return PROCESSES.render(template, {**special_tokens, **variables}), False


def _render_plain(messages: Sequence[Message]) -> str:
    turns = [f"{message.role.capitalize()}: {message.content}" for message in messages]
    return "\n\n".join([*turns, "Assistant:"])
