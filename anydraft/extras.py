"""Packages that only some machines need: when one is missing, the error names the extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anydraft.errors import FailedPreconditionError

_OURS = ("anydraft", "draft_node", "verify_node")


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Around imports, or around what imports: raises FailedPreconditionError in the place of
    ModuleNotFoundError. `extra` may name several, separated by commas."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:
            raise
        raise missing_package(error.name, extra) from error


def missing_package(names: str, extra: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"this needs {names}: run pip install 'anydraft[{extra}]'", reason="PACKAGE_MISSING"
    )
