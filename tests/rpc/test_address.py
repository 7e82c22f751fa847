import pytest

from anydraft.errors import InvalidRequestError
from anydraft.rpc.address import parse_listen, parse_target


@pytest.mark.parametrize(
    ("text", "host", "port", "shown"),
    [
        ("127.0.0.1:50051", "127.0.0.1", 50051, "127.0.0.1:50051"),
        (" verify.example:443 ", "verify.example", 443, "verify.example:443"),
        ("[::1]:50051", "::1", 50051, "[::1]:50051"),
        ("[0:0::1]:1", "::1", 1, "[::1]:1"),
    ],
)
def test_addresses(text: str, host: str, port: int, shown: str) -> None:
    for address in (parse_target(text), parse_listen(text)):
        assert (address.host, address.port, str(address)) == (host, port, shown)


def test_only_a_listener_may_leave_the_port_open() -> None:
    assert parse_listen("127.0.0.1:0").port == 0
    with pytest.raises(InvalidRequestError, match="outside 1 to 65535"):
        parse_target("127.0.0.1:0")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no port"),
        ("localhost", "has no port"),
        (":50051", "has no host"),
        ("localhost:", "no number as its port"),
        ("localhost:http", "no number as its port"),
        ("localhost:²", "no number as its port"),
        ("localhost:-1", "no number as its port"),
        ("localhost:65536", "outside"),
        ("http://localhost:50051", "is a URL or a path"),
        ("unix:/tmp/socket", "is a URL or a path"),
        ("::1:50051", "needs brackets"),
        ("[::g]:50051", "no IPv6 address in its brackets"),
        ("local host:50051", "malformed host"),
        ("[::1:50051", "needs brackets"),
    ],
)
@pytest.mark.parametrize("parse", [parse_listen, parse_target])
def test_malformed_addresses_say_what_is_wrong(parse, text: str, problem: str) -> None:
    with pytest.raises(InvalidRequestError, match=problem) as caught:
        parse(text)
    assert "HOST:PORT" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("localhost:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("example.com:1", False),
    ],
)
def test_loopback(text: str, expected: bool) -> None:
    assert parse_target(text).is_loopback is expected
