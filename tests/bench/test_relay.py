"""The relay delays, and changes nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from anydraft.bench.relay import Relay, main


@contextmanager
def echo() -> Iterator[tuple[str, int]]:
    """A server that sends back what it hears."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@contextmanager
def through(target: tuple[str, int], round_trip_ms: float) -> Iterator[socket.socket]:
    relay = Relay(target, round_trip_ms)
    thread = threading.Thread(target=relay.serve, daemon=True)
    thread.start()
    host, port = relay.address.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            yield connection
    finally:
        relay.close()
        thread.join()


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(65536)
        assert part
        data += part
    return data


def test_a_round_trip_takes_its_time() -> None:
    with echo() as target, through(target, 80) as connection:
        for word in (b"one", b"two"):
            began = time.monotonic()
            connection.sendall(word)
            assert _receive(connection, 3) == word
            # No sleep is ever shorter than asked; how much longer depends on the machine.
            assert time.monotonic() - began >= 0.08


def test_bytes_come_whole_and_in_order_however_many() -> None:
    """More than may be on the way at once, so the sender is held up meanwhile."""
    data = bytes(range(256)) * 40_000
    with echo() as target, through(target, 2) as connection:
        sender = threading.Thread(target=connection.sendall, args=(data,), daemon=True)
        sender.start()
        assert _receive(connection, len(data)) == data
        sender.join()


def test_the_end_of_one_side_ends_the_other() -> None:
    with echo() as target, through(target, 2) as connection:
        connection.sendall(b"last words")
        connection.shutdown(socket.SHUT_WR)
        assert _receive(connection, 10) == b"last words"
        assert connection.recv(1) == b""


def test_nobody_behind_it_is_no_end_of_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        address = gone.getsockname()
    with through(address, 2) as connection:
        assert connection.recv(1) == b""
    with echo() as target, through(target, 2) as connection:
        connection.sendall(b"x")
        assert _receive(connection, 1) == b"x"


@pytest.mark.parametrize(
    "words",
    [[], ["--target", "127.0.0.1"], ["--target", "127.0.0.1:1", "--round-trip-ms", "-1"]],
)
def test_what_it_cannot_do_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
