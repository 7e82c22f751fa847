"""Addresses as people write them: HOST:PORT, IPv6 in brackets."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from anydraft.errors import InvalidRequestError

_EXAMPLE = "127.0.0.1:50051"
_MAX_PORT = 65535


class Address(NamedTuple):
    """`str(address)` is what gRPC takes and what people read."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_listen(text: str) -> Address:
    """Where a server listens; port 0 asks the system for a free one.

    Raises InvalidRequestError when `text` is not HOST:PORT.
    """
    return _parse(text, "listen address", lowest_port=0)


def parse_target(text: str) -> Address:
    """What a client dials. Raises InvalidRequestError when `text` is not HOST:PORT."""
    return _parse(text, "server address", lowest_port=1)


def _parse(text: str, what: str, *, lowest_port: int) -> Address:
    stripped = text.strip()
    if "://" in stripped or "/" in stripped:
        raise _invalid(what, text, "is a URL or a path")
    host, colon, port_text = stripped.rpartition(":")
    if not colon:
        raise _invalid(what, text, "has no port")
    if not (port_text.isascii() and port_text.isdigit()):
        raise _invalid(what, text, "has no number as its port")
    port = int(port_text)
    if not lowest_port <= port <= _MAX_PORT:
        raise _invalid(what, text, f"has a port outside {lowest_port} to {_MAX_PORT}")
    return Address(_parse_host(host, what, text), port)


def _parse_host(host: str, what: str, text: str) -> str:
    if not host:
        raise _invalid(what, text, "has no host")
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise _invalid(what, text, "has no IPv6 address in its brackets") from None
    if ":" in host:
        raise _invalid(what, text, "needs brackets around its IPv6 address, as in [::1]:50051")
    if any(character.isspace() or character in "[]" for character in host):
        raise _invalid(what, text, "has a malformed host")
    return host


def _invalid(what: str, text: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"{what} {text!r} {problem}: write it as HOST:PORT, such as {_EXAMPLE}",
        reason="INVALID_ADDRESS",
    )
