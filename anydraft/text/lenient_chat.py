"""Chat messages to prompt text, for an assistant whose template refuses them as they are.

Only drafts depend on it: a draft node renders the same messages with another model's template than
the verify node, and a rendering that comes near beats having nothing to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from anydraft.errors import FailedPreconditionError, InvalidRequestError
from anydraft.text.chat import Message, render_messages

_KNOWN_ROLES = ("system", "user", "assistant")
_ROLES = {"developer": "system", "model": "assistant", "ai": "assistant", "bot": "assistant"}
"""What other roles mean to a template that knows three; those not named here speak to the model, as
a user does ("tool", "function")."""
_PARAGRAPH = "\n\n"


@dataclass(frozen=True)
class _Message:
    role: str
    content: str


def render_messages_leniently(
    messages: Sequence[Message], template: str | None, special_tokens: Mapping[str, str]
) -> tuple[str, bool]:
    """As `render_messages`, with the first form of the messages that the template accepts, and
    without the template when it accepts none. Raises InvalidRequestError when there are no
    messages."""
    if template is None or not messages:
        return render_messages(messages, None, special_tokens)
    tried: list[list[_Message]] = []
    for form in _forms([_Message(str(m.role), str(m.content)) for m in messages]):
        if form in tried:
            continue
        tried.append(form)
        try:
            return render_messages(form, template, special_tokens)
        except InvalidRequestError as error:
            if error.reason != "CHAT_TEMPLATE_REFUSED":
                break
        except FailedPreconditionError:  # the template does not parse
            break
    return render_messages(messages, None, special_tokens)


def _forms(messages: list[_Message]) -> Iterator[list[_Message]]:
    """The messages as they are, then ever plainer."""
    yield messages
    known = [_Message(_known_role(m.role), m.content) for m in messages]
    yield known
    yield _without_system(known)
    system = [m.content for m in known if m.role == "system"]
    others = _alternating([m for m in known if m.role != "system"])
    if system:
        yield [_Message("system", _PARAGRAPH.join(system)), *others]
    yield _alternating(_without_system(known))


def _known_role(role: str) -> str:
    role = role.lower()
    return role if role in _KNOWN_ROLES else _ROLES.get(role, "user")


def _without_system(messages: Sequence[_Message]) -> list[_Message]:
    """What the system says stands at the beginning of the user's next message."""
    others: list[_Message] = []
    said: list[str] = []
    for message in messages:
        if message.role == "system":
            said.append(message.content)
        elif message.role == "user" and said:
            others.append(_Message("user", _PARAGRAPH.join([*said, message.content])))
            said = []
        else:
            others.append(message)
    return [*others, _Message("user", _PARAGRAPH.join(said))] if said else others


def _alternating(messages: Sequence[_Message]) -> list[_Message]:
    """User and assistant in turn, the user first: what one says in a row becomes one message."""
    turns: list[_Message] = []
    for message in messages:
        if turns and turns[-1].role == message.role:
            joined = _PARAGRAPH.join([turns[-1].content, message.content])
            turns[-1] = _Message(message.role, joined)
        else:
            turns.append(message)
    return [_Message("user", ""), *turns] if turns and turns[0].role == "assistant" else turns
