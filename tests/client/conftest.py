from collections.abc import Iterator

import pytest

from tests.client.fake_node import FakeNode


@pytest.fixture
def node() -> Iterator[FakeNode]:
    node = FakeNode()
    yield node
    node.stop()
