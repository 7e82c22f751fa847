"""`anydraft chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import io
import sys
from contextlib import suppress

from anydraft.cli.generate import describe
from anydraft.cli.main import print_error
from anydraft.cli.options import add_sampling_flags, add_server_flags, options_from, server_from
from anydraft.client import Client, GenerateOptions, ServerInfo
from anydraft.errors import AnydraftError

_HELP = """\
/reset  forget the conversation
/exit   leave (so does Ctrl-D)
/help   this
Ctrl-C stops an answer; what was said of it stays in the conversation."""

_PROMPT = "> "


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "chat", help="talk with a model", description="Talk with a model. /help lists commands."
    )
    add_server_flags(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message to begin with")
    parser.add_argument("--stats", action="store_true", help="say after each answer what it took")
    add_sampling_flags(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    # Importing it is what gives input() a history and line editing; not every Python has it.
    with suppress(ImportError):
        import readline  # noqa: F401
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    with Client(server_from(args), timeout=args.timeout) as client:
        print(_greeting(client.server_info()))
        conversation = Conversation(client, options_from(args), args.system)
        while (line := _read_line()) is not None:
            match line.strip():
                case "":
                    continue
                case "/exit":
                    break
                case "/reset":
                    conversation.reset()
                    print("forgotten")
                case "/help":
                    print(_HELP)
                case command if command.startswith("/"):
                    print(f"no command {command}; /help lists them")
                case _:
                    conversation.say(line, show_stats=args.stats)
    return 0


class Conversation:
    """The messages so far. A question that got no answer is not kept."""

    def __init__(self, client: Client, options: GenerateOptions, system: str | None) -> None:
        self._client = client
        self._options = options
        self._opening = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._opening)

    def reset(self) -> None:
        self.messages = list(self._opening)

    def say(self, text: str, *, show_stats: bool) -> None:
        """Prints the answer to `text` as it comes. Ctrl-C ends the answer, an error is printed."""
        question = {"role": "user", "content": text}
        answer = ""
        try:
            with self._client.generate(
                messages=[*self.messages, question], **self._options
            ) as stream:
                for event in stream:
                    answer += event.text
                    print(event.text, end="", flush=True)
                print()
                if show_stats:
                    print(describe(stream.result().stats), file=sys.stderr)
        except KeyboardInterrupt:
            print(" (stopped)")
        except AnydraftError as error:
            if answer:
                print()
            print_error(error)
        if answer:
            self.messages += [question, {"role": "assistant", "content": answer}]


def _greeting(info: ServerInfo) -> str:
    target = info.model or "a target that is not reached yet"
    assisted = f", drafted by {info.assistant}" if info.assistant else ""
    lines = [f"{target}{assisted}. /help lists commands."]
    if info.has_chat_template is False:
        lines.append("This model has no chat template: it may not answer like an assistant.")
    return "\n".join(lines)


def _read_line() -> str | None:
    """What the user typed; None at the end of the input. Ctrl-C clears the line."""
    while True:
        try:
            return input(_PROMPT if sys.stdin.isatty() else "")
        except KeyboardInterrupt:
            print()
        except EOFError:
            if sys.stdin.isatty():
                print()
            return None
