"""The Compose files: confined, limited, on loopback, started in order."""

import shutil
import subprocess
from typing import Any

import pytest

from tests.deploy.files import DEPLOY, example_environment, read_compose, variables_of

COMPOSE = read_compose("compose.yaml")
SERVICES: dict[str, Any] = COMPOSE["services"]
NODES = ("draft", "verify")
FILES = (["compose.yaml"], ["compose.yaml", "compose.gpu.yaml"])


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_confined(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["tmpfs"] == ["/tmp"]
    assert service["init"] is True
    assert not {"privileged", "cap_add", "network_mode", "pid", "devices", "user"} & set(service)


@pytest.mark.parametrize("name", SERVICES)
def test_services_are_limited(name: str) -> None:
    limits = SERVICES[name]["deploy"]["resources"]["limits"]
    assert int(limits["cpus"]) >= 1
    assert limits["memory"].endswith("g")
    assert limits["pids"] > 0


@pytest.mark.parametrize("name", NODES)
def test_threads_follow_the_cpu_limit(name: str) -> None:
    variable = f"ANYDRAFT_{name.upper()}_CPUS"
    service = read_compose("compose.yaml", {variable: "7"})["services"][name]
    assert service["deploy"]["resources"]["limits"]["cpus"] == "7"
    assert "--threads=7" in service["command"]


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    ports = SERVICES[name].get("ports", [])
    assert len(ports) == (1 if name in NODES else 0)
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_draft_node_waits_for_the_verify_node_and_the_export() -> None:
    assert SERVICES["draft"]["depends_on"] == {
        "verify": {"condition": "service_healthy"},
        # Only where the profile is chosen.
        "export": {"condition": "service_completed_successfully", "required": False},
    }


def test_the_export_runs_once_and_only_when_asked_for() -> None:
    assert SERVICES["export"]["profiles"] == ["export"]
    assert SERVICES["export"]["restart"] == "no"
    assert all("profiles" not in SERVICES[name] for name in NODES)


@pytest.mark.parametrize("name", SERVICES)
def test_caches_are_named_volumes(name: str) -> None:
    (volume,) = SERVICES[name]["volumes"]
    source, folder = volume.split(":")
    assert source in COMPOSE["volumes"]
    assert folder == "/var/cache/anydraft"


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_built_from_files_that_are_there(name: str) -> None:
    build = SERVICES[name]["build"]
    context = (DEPLOY / build["context"]).resolve()
    assert (context / ".dockerignore").is_file()
    assert (context / build["dockerfile"]).is_file()


def test_a_gpu_is_added_to_the_target_alone() -> None:
    override = read_compose("compose.gpu.yaml")
    assert set(override["services"]) == {"verify"}
    (device,) = override["services"]["verify"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_the_example_tells_every_variable_and_its_default() -> None:
    used = variables_of("compose.yaml") | variables_of("compose.gpu.yaml")
    assert example_environment() == used


@pytest.mark.parametrize("name", SERVICES)
def test_variables_that_are_passed_on_are_in_the_example(name: str) -> None:
    example = (DEPLOY / ".env.example").read_text()
    assert all(f"# {variable}=" in example for variable in SERVICES[name]["environment"])


@pytest.mark.parametrize("names", FILES, ids="+".join)
def test_compose_accepts_the_files(names: list[str]) -> None:
    if not _has_compose():
        pytest.skip("the docker command or its compose plugin is not installed")
    files = [word for name in names for word in ("-f", str(DEPLOY / name))]
    example = ["--env-file", str(DEPLOY / ".env.example")]
    command = ["docker", "compose", *example, *files, "--profile", "export", "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def _has_compose() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
