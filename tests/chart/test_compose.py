"""compose.yaml is what the code is: every name, port, path, probe, command and variable in it is a
real one.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from headrace.audit.settings import AuditSettings, load_audit
from headrace.embedded.nats import nats_binary
from headrace.settings import Settings, load
from headrace.suite.services import SERVICES, SINK, TELEMETRY
from tests.chart.composition import COMPOSE, ROOT, SERVERS, Service, services
from tests.chart.deployment import MIRROR_PORT, SUITE

ROLES = ROOT / "deploy/postgres/roles.sql"
DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
SECOND = tuple(f"{name}-2" for name in ("init", *SUITE))
# Containers that end.
ONCE = ("init", "archive-base", "backup-init", "base-backup", "tail")
OURS = (
    *SUITE,
    *(
        "archiver",
        "audit-writer",
        "lake-writer",
        "sql-server",
        "wal-archiver",
        "sink",
        "console",
        "mirror",
    ),
    *ONCE,
    *SECOND,
)
# The words of a command after its first one.
MORE_WORDS = {
    "mirror": ["--to", "sqlite:////mirror/mirror.db", "--http", MIRROR_PORT],
    "sink": ["files"],
    "archive-base": ["base", "now"],
    "backup-init": ["init"],
    "base-backup": ["now", "--spread"],
    "tail": ["--from-start"],
}
# libpq's, of the mirror's target.
LIBPQ = {"PGPASSWORD"}


def known_variables() -> set[str]:
    """Every variable that a setting is read from."""
    groups = [*get_type_hints(Settings).values(), AuditSettings]
    return {declared.metadata["env"] for group in groups for declared in fields(group)} | LIBPQ


def ours() -> list[Service]:
    return [services()[name] for name in OURS]


def kind(name: str) -> str:
    """Which of headrace's commands it is."""
    if name in {"backup-init", "base-backup"}:
        return "backup"
    if name == "archive-base":
        return "archive"
    return name.removesuffix("-2")


def port_of(name: str) -> int:
    if name == "mirror":
        return int(MIRROR_PORT)
    return SINK.port if name == "sink" else SERVICES[kind(name)].port


def test_every_service_of_the_suite_is_there() -> None:
    assert set(SUITE) <= set(services())
    others = {"init", "mirror", "archive", "backup", "sink", "tail"}
    assert {kind(service.name) for service in ours()} - others == set(SERVICES)
    left_out = {name for name, service in services().items() if "image" in service.body} - set(OURS)
    assert [name for name in left_out if "headrace" in services()[name].body["image"]] == ["spark"]


@pytest.mark.parametrize("service", ours(), ids=lambda service: service.name)
def test_every_command_is_one_of_headrace(service: Service) -> None:
    assert service.command[0] == kind(service.name)
    assert service.command[1:] == MORE_WORDS.get(service.name, [])


@pytest.mark.parametrize(
    "service", [*ours(), services()["spark"]], ids=lambda service: service.name
)
def test_every_variable_is_a_setting_with_a_value_it_may_have(service: Service) -> None:
    assert set(service.environment) <= known_variables()
    load(service.environment)
    load_audit(service.environment)


@pytest.mark.parametrize(
    "name", [name for name in OURS if name not in ONCE and kind(name) != "init"]
)
def test_every_probe_asks_the_port_and_path_of_its_service(name: str) -> None:
    # Copying tables may take hours, in which there is nothing wrong with these.
    copying = {"mirror", "lake-writer", "sql-server", "sink"}
    path = "livez" if name in copying else "readyz"
    assert services()[name].probe[-3:] == ["/opt/headrace/probe.py", str(port_of(name)), path]


def test_the_second_suite_is_the_first_one_with_another_slot_and_publication() -> None:
    for name in SECOND:
        first, second = services()[kind(name)], services()[name]
        differs = {
            key for key, value in second.environment.items() if first.environment[key] != value
        }
        assert differs == {"HEADRACE_SLOT", "HEADRACE_PUB"}, name
        told = {"depends_on", "environment", "ports", "profiles"}
        assert {key for key in second.body if second.body[key] != first.body.get(key)} <= told, name


def test_what_is_left_out_of_the_stream_for_the_audit_is_its_own_schema() -> None:
    trail, publisher = services()["audit-writer"].environment, services()["publisher"].environment
    assert publisher["HEADRACE_EXCLUDE"] == f"{trail['HEADRACE_AUDIT_SCHEMA']}.*"
    assert publisher["HEADRACE_MESSAGE_PREFIXES"] == "_bemi"
    assert (
        f"CREATE SCHEMA IF NOT EXISTS {trail['HEADRACE_AUDIT_SCHEMA']} AUTHORIZATION"
        in ROLES.read_text()
    )


@pytest.mark.parametrize("service", ours(), ids=lambda service: service.name)
def test_no_service_has_more_rights_than_it_needs(service: Service) -> None:
    body = service.body
    assert body["user"] == "65532:65532"
    assert body["read_only"] is True
    assert body["cap_drop"] == ["ALL"]
    assert body["security_opt"] == ["no-new-privileges:true"]


def test_only_this_machine_reaches_the_published_ports() -> None:
    published = [port for service in services().values() for port in service.published]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_no_two_services_publish_one_port_and_9090_is_telemetrys() -> None:
    by_port = [
        (port.split(":")[1], name)
        for name, service in services().items()
        for port in service.published
    ]
    assert len({port for port, _ in by_port}) == len(by_port)
    assert dict(by_port)[str(TELEMETRY.port)] == "telemetry"


def test_prometheus_scrapes_telemetry_and_grafana_asks_prometheus() -> None:
    configuration = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yaml").read_text())
    targets = {
        job["job_name"]: [
            target for static in job["static_configs"] for target in static["targets"]
        ]
        for job in configuration["scrape_configs"]
    }
    assert targets == {
        "headrace": [f"telemetry:{TELEMETRY.port}"],
        "headrace-mirror": [f"mirror:{MIRROR_PORT}"],
    }
    listens = next(part for part in services()["prometheus"].command if "listen-address" in part)
    sources = yaml.safe_load(
        (ROOT / "deploy/grafana/provisioning/datasources/headrace.yaml").read_text()
    )
    assert sources["datasources"][0]["url"] == f"http://prometheus:{listens.rpartition(':')[2]}"
    assert sources["datasources"][0]["uid"] == "headrace-prometheus"


def test_prometheus_beside_two_suites_differs_by_its_second_target_alone() -> None:
    one, two = (
        yaml.safe_load((ROOT / "deploy/prometheus" / f"{name}.yaml").read_text())
        for name in ("prometheus", "prometheus-second")
    )
    one["scrape_configs"][0]["static_configs"][0]["targets"].append(f"telemetry-2:{TELEMETRY.port}")
    assert one == two
    given = services({"HEADRACE_PROMETHEUS": "prometheus-second"})["prometheus"].command[0]
    assert given == "--config.file=/etc/prometheus/prometheus-second.yaml"


def test_every_file_that_is_mounted_is_there() -> None:
    mounts = [str(v) for service in services().values() for v in service.body.get("volumes", [])]
    paths = [mount.split(":")[0] for mount in mounts if mount.startswith("./")]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_volume_is_declared_and_used() -> None:
    mounts = [
        str(v).split(":")[0]
        for service in services().values()
        for v in service.body.get("volumes", [])
    ]
    named = {mount for mount in mounts if not mount.startswith((".", "/"))}
    assert named == set(yaml.safe_load(COMPOSE.read_text())["volumes"])


def test_a_new_volume_belongs_to_the_images_user() -> None:
    rootfs = (ROOT / "deploy/docker/rootfs.sh").read_text()
    mounted = [
        str(volume).split(":")[1]
        for service in ours()
        for volume in service.body.get("volumes", [])
    ]
    made = re.findall(r'"\$root(/\w+)"', rootfs.partition("install -d -o 65532 -g 65532")[2])
    assert {path for path in mounted if not path.startswith("/etc/")} == set(made)


def test_every_service_waits_for_what_exists() -> None:
    known = services()
    for service in known.values():
        wanted: Any = service.body.get("depends_on", [])
        for name in wanted:
            assert name in known, f"{service.name} waits for {name}"
            healthy = isinstance(wanted, dict) and wanted[name]["condition"] == "service_healthy"
            assert not healthy or "healthcheck" in known[name].body, f"{name} has no health check"


def test_on_servers_of_ones_own_neither_server_is_started_nor_waited_for() -> None:
    known = services({}, SERVERS)
    assert all(known[name].body["profiles"] for name in ("postgres", "nats"))
    waited = {name: known[name].body["depends_on"] for name in OURS}
    for name in ("postgres", "nats"):
        assert [on for on in waited.values() if name in on and on[name].get("required", True)] == []


def test_every_password_is_one_that_env_sh_makes() -> None:
    made = subprocess.run(
        ["/bin/sh", "deploy/docker/env.sh"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    values = dict(line.split("=", 1) for line in made.splitlines())
    wanted = set(re.findall(r"\$\{(\w*(?:PASSWORD|TOKEN)):-", COMPOSE.read_text()))
    # A mirror's target is somebody else's server.
    assert wanted - {"HEADRACE_MIRROR_PASSWORD"} == set(values)
    assert len(set(values.values())) == len(values)
    assert all(re.fullmatch(r"h[0-9a-f]{40}", value) for value in values.values())


@pytest.mark.parametrize("name", ["nats.conf", "accounts.conf"])
def test_nats_server_accepts_the_shipped_configuration(name: str) -> None:
    environment = {**services()["nats"].environment, "NATS_READERS_ADMIN_PASSWORD": "p"}
    command = [str(nats_binary()), "-t", "-c", str(ROOT / "deploy/nats" / name)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_image_runs_what_compose_and_chart_give_it() -> None:
    text = DOCKERFILE.read_text()
    targets = re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)
    assert {service.body["build"]["target"] for service in ours()} <= set(targets)
    # The last stage is what a build without a target makes.
    assert targets[-1] == "core"
    for stage in re.split(r"^FROM ", text, flags=re.MULTILINE)[-6:]:
        assert "USER 65532:65532" in stage
        assert 'ENTRYPOINT ["/usr/bin/python3", "-m", "headrace.cli"]' in stage
        assert "HEADRACE_HTTP_HOST=0.0.0.0" in stage
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    missing = [path for paths in copied for path in paths.split() if not (ROOT / path).exists()]
    assert missing == []


def test_the_images_context_holds_what_the_dockerfile_copies() -> None:
    kept = [
        line[1:]
        for line in Path(ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    for path in (path for paths in copied for path in paths.split()):
        assert any(path == keep or path.startswith(f"{keep}/") for keep in kept), path
