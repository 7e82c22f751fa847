"""`python -m anydraft.bench.peer`: transformers' own `generate`, asked over a socket of loopback.

One JSON object a line each way: {"prompt", "max_new_tokens", "assisted"} gives {"ids", "arrivals"},
the latter in seconds from the question on, each with how many ids came. One question at a time.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import signal
import socketserver
import sys
import time
from collections.abc import Sequence
from typing import Any

from anydraft.errors import AnydraftError
from anydraft.extras import needs_extra
from anydraft.flags import EXIT_BAD_INPUT, Parser, positive_int
from anydraft.text.tokenizer import TextTokenizer
from anydraft.v1.prompt_pb2 import ChatMessage, ChatMessages, Prompt

_DTYPES = {"auto": "float32", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""As a verify node on a CPU resolves them."""


class Peer:
    """The two models, in one process."""

    def __init__(self, target: str, assistant: str, dtype: str) -> None:
        from anydraft.models import load_dense, resolve_model

        named = _DTYPES[dtype]
        self._target, self._tokenizer = load_dense(resolve_model(target), named, "cpu")
        self._assistant, self._its_tokenizer = load_dense(resolve_model(assistant), named, "cpu")
        self._text = TextTokenizer.from_transformers(self._tokenizer)

    def answer(self, prompt: str, max_new_tokens: int, *, assisted: bool) -> dict[str, Any]:
        import torch

        message = ChatMessage(role="user", content=prompt)
        asked = Prompt(messages=ChatMessages(messages=[message]))
        ids = torch.tensor([list(self._text.encode_prompt(asked))])
        options: dict[str, Any] = {}
        if assisted:
            options = {
                "assistant_model": self._assistant,
                "tokenizer": self._tokenizer,
                "assistant_tokenizer": self._its_tokenizer,
            }
        arrivals = _Arrivals()
        found = self._target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=max_new_tokens,
            streamer=arrivals,
            **options,
        )
        return {"ids": found[0, ids.shape[1] :].tolist(), "arrivals": arrivals.found}


class _Arrivals:
    """A streamer of `generate` that only looks at the clock."""

    def __init__(self) -> None:
        self._began_at_s = time.monotonic()
        self._prompt_seen = False
        self.found: list[tuple[float, int]] = []

    def put(self, value: Any) -> None:
        if self._prompt_seen:
            self.found.append((time.monotonic() - self._began_at_s, int(value.numel())))
        self._prompt_seen = True

    def end(self) -> None:
        """Nothing is held back."""


class _Server(socketserver.TCPServer):
    def __init__(self, peer: Peer) -> None:
        super().__init__(("127.0.0.1", 0), _Questions)
        self.peer = peer


class _Questions(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        for line in self.rfile:
            asked = json.loads(line)
            answer = self.server.peer.answer(
                asked["prompt"], asked["max_new_tokens"], assisted=asked["assisted"]
            )
            self.wfile.write(json.dumps(answer).encode() + b"\n")


def main(argv: Sequence[str] | None = None) -> int:
    p = Parser(prog="peer", description="Serve transformers' generate, for a comparison.")
    p.add_argument("--target", required=True, metavar="NAME")
    p.add_argument("--assistant", required=True, metavar="NAME")
    p.add_argument("--dtype", choices=tuple(_DTYPES), default="auto")
    p.add_argument("--threads", type=positive_int, metavar="N")
    args: argparse.Namespace = p.parse_args(argv)
    _end_with_parent()
    try:
        with needs_extra("verify"):
            return _serve(args)
    except AnydraftError as error:
        print(f"peer: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return 130


def _end_with_parent() -> None:
    """Whoever started this pauses it, and when he is killed nobody would resume it."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _serve(args: argparse.Namespace) -> int:
    import torch

    if args.threads is not None:
        torch.set_num_threads(args.threads)
    with _Server(Peer(args.target, args.assistant, args.dtype)) as server:
        port = server.socket.getsockname()[1]
        print(f"ready on 127.0.0.1:{port}", file=sys.stderr, flush=True)  # noqa: T201
        server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
