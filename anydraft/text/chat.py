"""Chat messages to prompt text, with a model's own template, exactly as transformers renders it.

Templates come with model files and are not trusted: they run in jinja2's immutable sandbox, with
the globals and filters of `transformers.utils.chat_template_utils` and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn, Protocol

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from anydraft.errors import FailedPreconditionError, InvalidRequestError


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
    InvalidRequestError when there are no messages or the template refuses them, and
    FailedPreconditionError when the template itself does not parse.
    """
    if not messages:
        raise InvalidRequestError(
            "The chat has no messages. Send at least one.", reason="PROMPT_EMPTY"
        )
    if template is None:
        return _render_plain(messages), True
    compiled = _compile(template)
    chat = [{"role": str(message.role), "content": str(message.content)} for message in messages]
    try:
        text = compiled.render(
            messages=chat, tools=None, documents=None, add_generation_prompt=True, **special_tokens
        )
    except Exception as error:  # templates run any expression over the messages
        raise InvalidRequestError(
            f"The model's chat template refuses these messages: {error}. "
            "Change the roles or their order, or send the prompt as text.",
            reason="CHAT_TEMPLATE_REFUSED",
        ) from error
    return text, False


def _render_plain(messages: Sequence[Message]) -> str:
    turns = [f"{message.role.capitalize()}: {message.content}" for message in messages]
    return "\n\n".join([*turns, "Assistant:"])


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}` marks the assistant's words for training; here its
    body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as an instance variable

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_render_body")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _render_body(self, caller: Any) -> Any:
        return caller()


class _TemplateDict:
    """`dict` for templates, without the type's attributes."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _TemplateNamespace(jinja2.utils.Namespace):
    """`namespace` for templates, without names that reach into Python's own objects."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _refuse_underscore(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot hold {name!r}")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


@lru_cache(maxsize=32)
def _compile(template: str) -> jinja2.Template:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["dict"] = _TemplateDict()
    environment.globals["namespace"] = _TemplateNamespace
    try:
        return environment.from_string(template)
    except jinja2.TemplateSyntaxError as error:
        raise FailedPreconditionError(
            f"The model's chat template does not parse ({error}). Replace its "
            "chat_template.jinja, or send prompts as text.",
            reason="CHAT_TEMPLATE_BROKEN",
        ) from error
