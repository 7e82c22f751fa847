"""Logging of a node: one line per event on stderr."""

from __future__ import annotations

import argparse
import logging
import sys

LEVELS = ("debug", "info", "warning", "error")

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def add_log_level_flag(parser: argparse.ArgumentParser, *, default: str = "info") -> None:
    """Adds `--log-level`."""
    parser.add_argument(
        "--log-level", choices=LEVELS, default=default, help="least severe log lines shown"
    )


def set_up_logging(level: str) -> None:
    """Sends this process's log to stderr, `level` (of LEVELS) and up. Replaces earlier set-up."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(_FORMAT, datefmt="%Y-%m-%dT%H:%M:%S")
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Libraries explain their inner life at these levels; a node's log is about the node.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("grpc").setLevel(logging.WARNING)
