"""Renders chat templates in a process of its own: `template_process.py` starts this file.

Templates come with model files and are not trusted: they run in jinja2's immutable sandbox, with
the globals and filters of `transformers.utils.chat_template_utils` and nothing else. A sandbox
bounds neither time nor memory, so the process does: it ends itself when a template takes too long,
whatever it is doing and whether or not anybody still waits for it.

Speaks JSON lines: a request is {"template", "variables"}, an answer {"text"}, or {"error",
"message"} with one of the errors below. Nothing of anydraft is imported, so that it starts in a
tenth of a second.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

TIME_LIMIT_S = 2.0
MEMORY_LIMIT_BYTES = 512 * 1024 * 1024
"""Address space of the process, where the system can limit that (Linux)."""
MAX_CHARACTERS = 4 * 1024 * 1024
"""Longest text that is sent back."""

BROKEN = "broken"
"""The template does not parse."""
REFUSED = "refused"
"""The template raised something."""
COSTLY = "costly"
"""The text is too long, or takes too much memory to make."""

_MAX_MESSAGE = 1000


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
    return environment.from_string(template)


def answer(template: str, variables: dict[str, Any]) -> dict[str, str]:
    """What is sent back for one request."""
    try:
        text = _compile(template).render(**variables)
    except MemoryError:
        return {"error": COSTLY, "message": "memory"}
    except jinja2.TemplateSyntaxError as error:
        return {"error": BROKEN, "message": str(error)[:_MAX_MESSAGE]}
    except Exception as error:  # templates run any expression over the messages
        return {"error": REFUSED, "message": str(error)[:_MAX_MESSAGE]}
    if len(text) > MAX_CHARACTERS:
        return {"error": COSTLY, "message": "length"}
    return {"text": text}


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    except (ImportError, ValueError, OSError):
        return  # the time limit remains


def main() -> None:
    """Answers requests until the other end of the pipe is closed."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    _limit_memory()
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        answers.write(b"{}\n")
        answers.flush()
        for line in requests:
            # A thread of the C library, which needs no lock of the interpreter.
            faulthandler.dump_traceback_later(TIME_LIMIT_S, exit=True, file=nowhere)
            encoded = _answer_line(line)
            faulthandler.cancel_dump_traceback_later()
            answers.write(encoded)
            answers.flush()


def _answer_line(line: bytes) -> bytes:
    request = json.loads(line.decode("utf-8", "surrogatepass"))
    found = answer(request["template"], request["variables"])
    return json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


if __name__ == "__main__":
    main()
