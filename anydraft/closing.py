"""Objects that a `with` block closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Closing(ABC):
    """A context manager that gives itself, and is closed with the block."""

    @abstractmethod
    def close(self) -> None:
        """Ends what it holds. Called once, also when the block raised."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
