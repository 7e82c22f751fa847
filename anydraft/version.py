"""Versions that travel: of the distribution, and of the wire contract."""

from importlib.metadata import PackageNotFoundError, version

PROTOCOL_REVISION = 3
"""Raised when a message changes its meaning; fields that are merely added leave it alone."""

try:
    VERSION = version("anydraft")
except PackageNotFoundError:  # run from a source tree that was never installed
    VERSION = "0.0.0"
