"""`anydraft models list | pull | export`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anydraft.errors import AnydraftError
from anydraft.extras import needs_extra

# Nothing of anydraft.models is imported before a command runs: `--help` answers at once.


def add_parser(subparsers: Any) -> None:
    """Add the `models` command to an argparse sub-parser group; it sets `func` to `run`."""
    parser = subparsers.add_parser(
        "models",
        help="list, download and convert models",
        description="Models by short name, by Hub id, or in a local folder or file.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    listing = actions.add_parser("list", help="show the models that have short names")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(func=run, action_func=_list)

    pull = actions.add_parser("pull", help="download models into the cache")
    pull.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="short name, org/repo[@revision], org/repo:file.gguf",
    )
    pull.set_defaults(func=run, action_func=_pull)

    export = actions.add_parser("export", help="turn an assistant into an ONNX folder for the edge")
    export.add_argument("name", metavar="NAME", help="what `pull` takes, or a folder or .gguf file")
    export.add_argument(
        "--precision",
        choices=("int4", "int8", "fp32"),
        default="int4",
        help="of the weights (default: %(default)s)",
    )
    export.add_argument(
        "--output", type=Path, metavar="DIR", help="folder to write (default: in the cache)"
    )
    export.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run code that comes with the model (default: never)",
    )
    export.set_defaults(func=run, action_func=_export)


def run(args: argparse.Namespace) -> int:
    """Run the chosen action; 0, or 1 after an error was told on stderr."""
    action: Callable[[argparse.Namespace], int] = args.action_func
    try:
        with needs_extra("draft"):
            return action(args)
    except AnydraftError as error:
        return _fail(error)


def _list(args: argparse.Namespace) -> int:
    from anydraft.models.cache import human_bytes
    from anydraft.models.pull import cached_path, is_cached
    from anydraft.models.registry import load_registry

    entries = [(entry, is_cached(entry)) for entry in load_registry().values()]
    if args.json:
        listed = [
            {
                "name": entry.name,
                "description": entry.description,
                "size_bytes": entry.size_bytes,
                "licence": entry.licence,
                "sha256": entry.sha256,
                "cached": cached,
                "path": str(cached_path(entry)) if cached else None,
            }
            for entry, cached in entries
        ]
        print(json.dumps(listed, indent=2))
        return 0
    rows = [("NAME", "SIZE", "LICENCE", "CACHED", "DESCRIPTION")]
    for entry, cached in entries:
        size = human_bytes(entry.size_bytes)
        rows.append((entry.name, size, entry.licence, "yes" if cached else "no", entry.description))
    _print_table(rows)
    return 0


def _pull(args: argparse.Namespace) -> int:
    from anydraft.models.resolve import resolve_model

    failed = False
    for name in args.names:
        try:
            files = resolve_model(name)
        except AnydraftError as error:
            failed = bool(_fail(error))
            continue
        print(files.folder / files.gguf_file if files.gguf_file else files.folder)
    return int(failed)


def _export(args: argparse.Namespace) -> int:
    from anydraft.models.assistant import resolve_assistant
    from anydraft.models.export import export_assistant
    from anydraft.models.resolve import resolve_model

    if args.output is None:
        print(
            resolve_assistant(
                args.name,
                precision=args.precision,
                trust_remote_code=args.trust_remote_code,
            )
        )
    else:
        # progress None: a bar only where stderr is a terminal.
        files = resolve_model(args.name)
        print(
            export_assistant(
                files,
                args.output,
                args.precision,
                progress=None,
                trust_remote_code=args.trust_remote_code,
            )
        )
        print(
            "Copy that folder to the edge, which needs no torch for it, and start there: "
            f"anydraft-draft --model ./{args.output.name} --verify HOST:PORT",
            file=sys.stderr,
        )
    return 0


def _print_table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def _fail(error: AnydraftError) -> int:
    print(f"anydraft: {error}", file=sys.stderr)
    return 1
