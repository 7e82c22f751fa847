"""Flags cannot drift: what `deploy` starts is what the programs understand."""

import argparse
from typing import Any

import pytest

from anydraft.models.registry import RegistryEntry
from anydraft.models.resolve import parse_name
from anydraft.rpc.address import parse_listen, parse_target
from draft_node.__main__ import settings_of
from tests.deploy.command_lines import deployed, parse, service_command, service_image
from tests.deploy.files import example_environment, read_compose

COMMANDS = deployed()
SERVICES: dict[str, Any] = read_compose("compose.yaml")["services"]
NODES = ("draft", "verify")


@pytest.mark.parametrize("where", COMMANDS)
def test_every_command_line_is_understood(where: str) -> None:
    assert isinstance(parse(COMMANDS[where]), argparse.Namespace)


def test_the_documented_ones_are_among_them() -> None:
    """Guards the search itself: a reader that finds nothing would pass every test."""
    kinds = [where.split()[0] for where in COMMANDS]
    assert kinds.count("image") == kinds.count("service") == 3
    assert kinds.count("README.md:") == 4
    assert kinds.count("draft.Dockerfile:") == kinds.count("verify.Dockerfile:") == 1


@pytest.mark.parametrize("name", SERVICES)
def test_an_unknown_flag_would_be_noticed(name: str) -> None:
    with pytest.raises(SystemExit):
        parse([*service_command(SERVICES[name]), "--no-such-flag=1"])


@pytest.mark.parametrize("where", [where for where in COMMANDS if "anydraft-draft" in where])
def test_draft_settings_are_valid(where: str) -> None:
    args = parse(COMMANDS[where])
    assert settings_of(args).engine == "onnx"
    assert [parse_target(address).port for address in args.verify] == [50051]


@pytest.mark.parametrize("name", NODES)
def test_a_node_listens_where_its_port_is_published(name: str) -> None:
    args = parse(service_command(SERVICES[name]))
    address = parse_listen(args.listen)
    image = service_image(SERVICES[name])
    assert not address.is_loopback
    assert image.last("EXPOSE").value == str(address.port)
    assert image.last("HEALTHCHECK").value.endswith(f'"127.0.0.1:{address.port}"]')
    (published,) = SERVICES[name]["ports"]
    assert published == f"127.0.0.1:{address.port}:{address.port}"


def test_the_draft_node_dials_the_verify_service() -> None:
    (draft,) = map(parse_target, parse(service_command(SERVICES["draft"])).verify)
    verify = parse_listen(parse(service_command(SERVICES["verify"])).listen)
    assert draft.host in SERVICES
    assert (draft.host, draft.port) == ("verify", verify.port)


@pytest.mark.parametrize(
    ("variables", "shares"),
    [
        ({}, True),
        ({"ANYDRAFT_SAME_MACHINE": "yes"}, True),
        ({"ANYDRAFT_SAME_MACHINE": "no"}, False),
    ],
)
def test_the_nodes_take_turns_unless_told_otherwise(
    variables: dict[str, str], shares: bool
) -> None:
    draft = read_compose("compose.yaml", variables)["services"]["draft"]
    assert settings_of(parse(service_command(draft))).shares_machine is shares


@pytest.mark.parametrize("name", NODES)
def test_containers_are_killed_only_after_the_nodes_grace(name: str) -> None:
    grace_s = parse(service_command(SERVICES[name])).grace
    stop_s = float(SERVICES[name]["stop_grace_period"].removesuffix("s"))
    assert stop_s >= grace_s + 10


def test_the_draft_node_starts_what_was_exported() -> None:
    chosen = {"ANYDRAFT_ASSISTANT": "org/repo", "ANYDRAFT_PRECISION": "int8"}
    services = read_compose("compose.yaml", chosen)["services"]
    exported = parse(service_command(services["export"]))
    drafted = parse(service_command(services["draft"]))
    assert (exported.name, exported.precision) == ("org/repo", "int8")
    assert (drafted.model, drafted.precision) == ("org/repo", "int8")
    assert exported.output is None  # so it is in the cache, where the draft node looks
    assert services["export"]["volumes"] == services["draft"]["volumes"]


@pytest.mark.parametrize("name", ["ANYDRAFT_TARGET", "ANYDRAFT_ASSISTANT"])
def test_default_models_have_short_names(name: str) -> None:
    assert isinstance(parse_name(example_environment()[name]), RegistryEntry)
