"""The compose file and Flame's two configurations: that they agree, and keep what they promise."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlparse

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yaml"
COMPOSE = yaml.safe_load(COMPOSE_FILE.read_text())
CLUSTER = yaml.safe_load((ROOT / "flame" / "flame-cluster.yaml").read_text())
CLIENT = yaml.safe_load((ROOT / "flame" / "flame.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SERVERS = ["flame-session-manager", "flame-object-cache", "flame-executor-manager"]
HERE = PurePosixPath("/opt/examples/rl")


def mounts(service: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A service's mounts by their target, short and long syntax alike."""
    found = {}
    for mount in service.get("volumes", []):
        if isinstance(mount, str):
            source, target, *mode = mount.split(":")
            named = not source.startswith((".", "/", "~"))
            mount = {
                "type": "volume" if named else "bind",
                "source": source,
                "target": target,
                "read_only": mode == ["ro"],
            }
        found[mount["target"]] = mount
    return found


def test_flames_version_stands_in_one_block_and_is_flamepys():
    tags = {service["image"].partition(":")[2] for service in SERVICES.values()}
    assert len(tags) == 1
    (tag,) = tags
    text = COMPOSE_FILE.read_text()
    block = re.search(r"^x-images:\n((?:  .*\n)+)", text, re.MULTILINE)
    assert block is not None
    assert len(block[1].splitlines()) == block[1].count(tag) == text.count(tag) == len(SERVICES)

    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    flamepy = re.search(r"flamepy\s*[=~>]=\s*(\d+\.\d+)", " ".join(dependencies))
    assert flamepy is not None
    assert tag.startswith(f"v{flamepy[1]}.")


def test_ports_are_open_on_this_machine_only():
    ports = [str(port) for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports), ports
    # 8081 hands out tasks to executors; nobody outside is one.
    assert {port.rpartition(":")[2] for port in ports} == {"8080", "9090"}


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_is_privileged(name):
    service = SERVICES[name]
    assert "docker.sock" not in yaml.safe_dump(service)
    assert not {"privileged", "network_mode", "pid", "ipc", "cap_add"} & service.keys()


def test_health_checks_ask_the_configured_ports():
    client = urlparse(CLUSTER["cluster"]["endpoint"]).port
    cache = urlparse(CLUSTER["cache"]["endpoint"]).port
    assert client is not None
    checks = {name: " ".join(SERVICES[name]["healthcheck"]["test"]) for name in SERVERS}
    assert f"/dev/tcp/127.0.0.1/{client} " in checks["flame-session-manager"]
    assert checks["flame-session-manager"].endswith(f"/dev/tcp/127.0.0.1/{client + 1}")
    assert checks["flame-object-cache"].endswith(f"/dev/tcp/$$(hostname -i)/{cache}")
    assert f":{client + 1:04X} 01 " in checks["flame-executor-manager"]


def test_mounted_files_exist_and_are_read_only():
    for name, service in SERVICES.items():
        for mount in mounts(service).values():
            if mount["type"] == "bind" and mount["source"] != ".":
                assert (ROOT / mount["source"]).is_file(), (name, mount)
                assert mount["read_only"], (name, mount)


def test_endpoints_name_services_and_their_ports():
    (context,) = [c for c in CLIENT["contexts"] if c["name"] == CLIENT["current-context"]]
    for part, scheme in (("cluster", "http"), ("cache", "grpc")):
        assert context[part]["endpoint"] == CLUSTER[part]["endpoint"]
        endpoint = urlparse(CLUSTER[part]["endpoint"])
        assert endpoint.scheme == scheme
        ports = SERVICES[endpoint.hostname or ""]["ports"]
        assert f"127.0.0.1:{endpoint.port}:{endpoint.port}" in ports


def test_compose_accepts_the_file():
    v2 = ["docker", "compose"]
    if (
        shutil.which("docker")
        and not subprocess.run([*v2, "version"], capture_output=True).returncode
    ):
        command = v2
    elif shutil.which("docker-compose"):
        command = ["docker-compose"]
    else:
        pytest.skip("neither `docker compose` nor `docker-compose` is on this machine")
    result = subprocess.run(
        [*command, "-f", str(COMPOSE_FILE), "config", "-q"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
