"""`python -m anydraft.bench.relay`: a stretch of network between two nodes of one machine.

Passes TCP connections on, every byte half a round trip late in each direction. Threads and blocking
sockets: an event loop's timers are a millisecond late.
"""

from __future__ import annotations

import argparse
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from anydraft.flags import EXIT_BAD_INPUT, Parser, number, server_address
from anydraft.rpc.address import parse_target

_CHUNK_BYTES = 16 * 1024
_CHUNKS_ON_THE_WAY = 256
"""In each direction of a connection; then its sender is not read from any more, as on a line that
is full. With chunks that are full, 4 MiB."""


class Relay:
    """Listens on a free port of loopback from when it is made."""

    def __init__(self, target: tuple[str, int], round_trip_ms: float) -> None:
        self._target = target
        self._delay_s = round_trip_ms / 2e3
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"

    def serve(self) -> None:
        """Until it is closed."""
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def close(self) -> None:
        """Takes no more connections; those that there are go on."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        for end in (near, far):
            # A delayed acknowledgement would add 40 ms of its own.
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = [_Line(near, far, self._delay_s), _Line(far, near, self._delay_s)]
        threads = [t for line in lines for t in line.start()]
        for thread in threads:
            thread.join()
        near.close()
        far.close()


class _Line:
    """One direction of a connection."""

    def __init__(self, source: socket.socket, sink: socket.socket, delay_s: float) -> None:
        self._source, self._sink, self._delay_s = source, sink, delay_s
        self._on_the_way: queue.Queue[tuple[float, bytes]] = queue.Queue(_CHUNKS_ON_THE_WAY)

    def start(self) -> list[threading.Thread]:
        threads = [threading.Thread(target=f, daemon=True) for f in (self._read, self._write)]
        for thread in threads:
            thread.start()
        return threads

    def _read(self) -> None:
        data = b"-"
        while data:
            try:
                data = self._source.recv(_CHUNK_BYTES)
            except OSError:
                data = b""  # a connection that was reset ends there, too
            self._on_the_way.put((time.monotonic() + self._delay_s, data))

    def _write(self) -> None:
        is_open = True
        while True:
            due, data = self._on_the_way.get()
            if not data:
                break
            if (left := due - time.monotonic()) > 0:
                time.sleep(left)
            if is_open:
                try:
                    self._sink.sendall(data)
                except OSError:
                    is_open = False  # reads on, so that the reader finds the end
                    _shut(self._source, socket.SHUT_RDWR)
        # The other direction may still have something to say.
        _shut(self._sink, socket.SHUT_WR)


def _shut(end: socket.socket, how: int) -> None:
    with suppress(OSError):
        end.shutdown(how)


def main(argv: Sequence[str] | None = None) -> int:
    p = Parser(prog="relay", description="Add a round trip to the way to a node.")
    p.add_argument("--target", required=True, type=server_address, metavar="HOST:PORT")
    p.add_argument("--round-trip-ms", required=True, type=number(0), metavar="MS")
    args: argparse.Namespace = p.parse_args(argv)
    target = parse_target(args.target)
    try:
        relay = Relay((target.host, target.port), args.round_trip_ms)
    except OSError as error:
        print(f"relay: no port of loopback is free: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_BAD_INPUT
    print(f"ready on {relay.address}", file=sys.stderr, flush=True)  # noqa: T201
    try:
        relay.serve()
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
