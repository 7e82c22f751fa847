from tests.client.conftest import node

__all__ = ["node"]
