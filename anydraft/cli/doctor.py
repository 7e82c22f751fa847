"""`anydraft doctor`: what this machine, this installation and the servers can do."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict

from anydraft.cli.doctor_install import installation_findings
from anydraft.cli.doctor_machine import machine_findings
from anydraft.cli.findings import Finding
from anydraft.flags import SERVER_VARIABLE

_COLOURS = {"ok": "32", "warn": "33", "fail": "31"}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "doctor",
        help="check this machine, the installation and servers",
        description="Check this machine, the installation and servers. Exits with 1 if one fails.",
    )
    parser.add_argument(
        "--server",
        action="append",
        metavar="HOST:PORT",
        help="a node to ask for one token; repeatable (default: $ANYDRAFT_SERVER)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    findings: list[Finding] = []
    for finding in _all_findings(args.server or _server_from_environment()):
        findings.append(finding)
        if not args.json:
            _print(finding)
    failed = any(finding.state == "fail" for finding in findings)
    if args.json:
        report = {"ok": not failed, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(report, indent=2))
    return 1 if failed else 0


def _all_findings(servers: list[str]) -> Iterator[Finding]:
    yield from machine_findings()
    yield from installation_findings()
    if servers:
        # Imported late: when the stubs do not load, the findings above say why.
        from anydraft.cli.doctor_server import server_findings

        for address in servers:
            yield from server_findings(address)


def _server_from_environment() -> list[str]:
    server = os.environ.get(SERVER_VARIABLE)
    return [server] if server else []


def _print(finding: Finding) -> None:
    state = f"{finding.state:<4}"
    # https://no-color.org
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR"):
        state = f"\x1b[{_COLOURS[finding.state]}m{state}\x1b[0m"
    print(f"{state}  {finding.name}: {finding.detail}", flush=True)
    if finding.fix is not None:
        print(f"      -> {finding.fix}")
