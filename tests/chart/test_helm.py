"""The chart renders, in several sets of values, to what Kubernetes accepts and the code is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import kubernetes_validate  # type: ignore[import-untyped]  # published without types
import pytest
import yaml
from typer.testing import CliRunner

from headrace.audit.settings import AuditSettings, load_audit
from headrace.cli.main import app
from headrace.cli.mirror.run import table_names
from headrace.settings import Settings, load
from headrace.sinks.configuration import parse_sinks
from headrace.sql.private_server import check_sql
from headrace.suite.services import SERVICES, SINK
from tests.chart.composition import services
from tests.chart.deployment import SUITE
from tests.chart.rendered import (
    CHART,
    SETS,
    container_of,
    helm,
    of_kind,
    of_name,
    pods,
    rendered,
    secrets_of,
    values_of,
    with_values,
)

ROOT = Path(__file__).parents[2]
LIBPQ = {"PGSSLMODE", "PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY", "PGPASSWORD"}
# They end.
COMMANDS = {"init", "doctor", "archive", "backup", "restore"}
FOREIGN_KINDS = {"ServiceMonitor", "PrometheusRule"}


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_helm_finds_nothing_to_complain_about(values: Path) -> None:
    done = helm("lint", CHART, "--strict", "-f", values)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", ["1.30", "1.35"])
@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_kubernetes_accepts_every_manifest(values: Path, version: str) -> None:
    for manifest in rendered(values):
        if manifest["kind"] not in FOREIGN_KINDS:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_every_service_is_deployed_and_has_no_name_twice(values: Path) -> None:
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in rendered(values)]
    assert len(names) == len(set(names))
    commands = [container["args"][0] for _, _, container in pods(values) if "args" in container]
    assert set(SUITE) <= set(commands) <= {*SERVICES, *COMMANDS, "mirror", "sink"}
    enabled = yaml.safe_load(values.read_text())
    for command, part in (("audit-writer", "audit"), ("mirror", "mirror"), ("console", "console")):
        assert (command in commands) is enabled.get(part, {}).get("enabled", False), command


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_every_variable_is_a_setting_with_a_value_it_may_have(values: Path) -> None:
    settings = [*get_type_hints(Settings).values(), AuditSettings]
    known = {
        declared.metadata["env"]
        for group in settings
        for declared in group.__dataclass_fields__.values()
    }
    for name, _, container in pods(values):
        variables = [entry["name"] for entry in container["env"]]
        assert len(variables) == len(set(variables)), name
        assert set(variables) - LIBPQ <= known, name
        given = {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}
        load(given)
        load_audit(given)


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_every_port_and_probe_is_the_services(values: Path) -> None:
    for name, _, container in pods(values):
        if container.get("args", ["init"])[0] in COMMANDS:
            continue
        ports = [port["containerPort"] for port in container["ports"]]
        if container["args"][0] == "sink":
            assert ports == [SINK.port], name
        elif container["args"][0] == "sql-server":
            assert ports == [SERVICES["sql-server"].port, load({}).sql.port], name
        elif container["args"][0] == "mirror":
            assert container["args"][2:3] == [f"--http={ports[0]}"]
        else:
            assert ports == [SERVICES[container["args"][0]].port], name
        paths = {
            container[f"{probe}Probe"]["httpGet"]["path"]
            for probe in ("startup", "liveness", "readiness")
        }
        assert paths <= {"/livez", "/readyz", "/standbyz"}, name


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_no_pod_has_more_rights_than_it_needs(values: Path) -> None:
    for name, pod, container in pods(values):
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["runAsUser"] == 65532, name
        assert pod["automountServiceAccountToken"] is False, name
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
        assert container["securityContext"]["allowPrivilegeEscalation"] is False, name
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, name
        assert container["resources"]["limits"]["memory"], name


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_no_secret_is_in_a_manifest(values: Path) -> None:
    secret = re.compile("PASSWORD|TOKEN|SECRET|SEED")
    for _, _, container in pods(values):
        assert [
            e["name"] for e in container["env"] if secret.search(e["name"]) and "value" in e
        ] == []
    assert list(of_kind(values, "Secret")) == []


@pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)
def test_every_selector_finds_the_pods_it_is_for(values: Path) -> None:
    workloads = ("Deployment", "StatefulSet")
    labels = [m["spec"]["template"]["metadata"]["labels"] for m in of_kind(values, *workloads)]
    for manifest in of_kind(values, "Service", "PodDisruptionBudget", *workloads):
        selector = manifest["spec"]["selector"]
        wanted = selector.get("matchLabels", selector).items()
        assert len([pod for pod in labels if wanted <= pod.items()]) == 1, manifest["metadata"][
            "name"
        ]


def test_several_slots_are_suites_of_their_own() -> None:
    everything = CHART / "ci/everything.yaml"
    slots = [
        (tuple(container["args"]), entry["value"])
        for _, _, container in pods(everything)
        for entry in container["env"]
        if entry["name"] == "HEADRACE_SLOT" and "args" in container
    ]
    assert len(slots) == len(set(slots))
    assert {slot for _, slot in slots} == {"orders_slot", "people"}
    own = {
        entry["value"]
        for name, _, container in pods(everything)
        for entry in container["env"]
        if "orders-slot" in name and entry["name"] == "HEADRACE_REPLICAS"
    }
    assert own == {"3"}


def test_of_several_slots_each_has_an_archive_and_a_trail_of_its_own() -> None:
    everything = CHART / "ci/everything.yaml"
    for slot, name in (("orders_slot", "orders-slot"), ("people", "people")):
        assert (
            values_of(container_of(everything, f"{name}-archiver"))["HEADRACE_ARCHIVE_URL"]
            == f"s3://bucket/log/{slot}"
        )
        trail = load_audit(values_of(container_of(everything, f"{name}-audit-writer")))
        assert (trail.schema, trail.table, trail.keep_days) == (
            "headrace_audit",
            f"changes_{slot}",
            90,
        )
        assert (trail.host, trail.port, trail.database) == ("audit.example", 6432, "trail")
        # `headrace audit up` would start the publisher with these.
        told = load(values_of(container_of(everything, f"{name}-publisher"))).format
        assert told.message_prefixes == ("_bemi",)
        wanted = replace(trail, host=None, port=None, database=None).for_the_suite({})[
            "HEADRACE_EXCLUDE"
        ]
        assert set(told.exclude) == set(wanted.split(","))


def stores_of(container: dict[str, Any]) -> list[str]:
    return [entry["secretRef"]["name"] for entry in container.get("envFrom", [])]


def test_of_several_slots_each_has_a_lake_with_its_rights() -> None:
    everything = CHART / "ci/everything.yaml"
    for slot, name in (("orders_slot", "orders-slot"), ("people", "people")):
        container = container_of(everything, f"{name}-lake-writer")
        lake = load(values_of(container))
        assert lake.lake.url == f"s3://bucket/lake/{slot}"
        assert lake.archive.url == f"s3://bucket/log/{slot}"
        secrets = secrets_of(container)
        assert secrets["HEADRACE_LAKE_CATALOG"] == "lake-catalog"
        assert secrets["HEADRACE_LAKE_TOKEN"] == "lake-token"
        assert secrets["POSTGRES_BRIDGE_USER"] == "headrace-postgres-snapshot"
        assert secrets["NATS_BRIDGE_USER"] == "headrace-nats-lake-writer"
        assert stores_of(container) == ["archive-store", "lake-store"]
    policy = of_name("NetworkPolicy", "headrace")["spec"]["egress"][1]["ports"]
    assert 5434 in {entry["port"] for entry in policy}


def test_a_lake_without_an_archive_is_refused() -> None:
    done = with_values("lake.url=s3://bucket/lake", "archive.url=")
    assert done.returncode != 0
    assert "lake.url needs archive.url" in done.stderr


def test_of_several_slots_each_has_sql_servers_that_read_its_lake() -> None:
    everything = CHART / "ci/everything.yaml"
    for slot, name in (("orders_slot", "orders-slot"), ("people", "people")):
        container = container_of(everything, f"{name}-sql-server")
        made = load(values_of(container))
        assert made.lake.url == f"s3://bucket/lake/{slot}"
        assert made.source.slot == slot
        assert made.sql.host == made.process.http_host, "of other pods, too"
        assert (made.sql.folder, made.sql.memory_mb) == ("/sql", 1024)
        check_sql(made.sql)
        assert made.sql.tls_required
        secrets = secrets_of(container)
        assert secrets["HEADRACE_LAKE_CATALOG"] == "lake-catalog-reader"
        assert secrets["NATS_BRIDGE_USER"] == "headrace-nats-sql-server"
        # It needs no right on the source.
        assert "POSTGRES_BRIDGE_USER" not in secrets
        assert stores_of(container) == ["lake-reader"]


def test_a_sql_server_keeps_its_users_and_opens_to_clients_with_its_tables() -> None:
    manifest = of_name("StatefulSet", "headrace-people-sql-server")
    (claim,) = manifest["spec"]["volumeClaimTemplates"]
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    folder = load(values_of(container)).sql.folder
    assert mounts[claim["metadata"]["name"]] == folder
    certificate = load(values_of(container)).sql.tls_cert
    assert str(Path(str(certificate)).parent) == mounts["sql-tls"]
    assert container["startupProbe"]["httpGet"]["path"] == "/readyz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/livez"
    service = of_name("Service", manifest["spec"]["serviceName"])
    assert {port["targetPort"] for port in service["spec"]["ports"]} == {"http", "sql"}
    policy = of_name("NetworkPolicy", "headrace-people-sql-server")["spec"]
    assert policy["ingress"][0]["ports"] == [{"port": "sql"}]
    assert policy["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"]
    assert policy["podSelector"]["matchLabels"].items() <= (
        manifest["spec"]["template"]["metadata"]["labels"].items()
    )


def test_the_image_of_each_service_has_its_packages() -> None:
    """tests/chart/test_image_packages.py proves what each image has."""
    composed = {
        service.command[0]: service.body["image"].partition(":")[0].removeprefix("headrace")
        for service in services().values()
        if service.body.get("image", "").startswith("headrace") and service.command
    }
    rendered_images = {
        (container["args"][0], container["image"].split("/headrace")[1].partition(":")[0])
        for _, _, container in pods(CHART / "ci/everything.yaml")
        if "args" in container and "/headrace" in container["image"]
        if "--drill" not in container["args"] and container["args"] != ["doctor"]
    }
    # Compose's `tail` is for people who have no client.
    wanted = {(command, image) for command, image in composed.items() if command != "tail"}
    assert rendered_images == wanted


def test_a_cluster_has_one_backup_whatever_the_number_of_slots() -> None:
    everything = CHART / "ci/everything.yaml"
    containers = [
        container
        for _, _, container in pods(everything)
        if container.get("args") == ["wal-archiver"]
    ]
    assert len(containers) == 1
    (init,) = [container for name, _, container in pods(everything) if name.endswith("/init")]
    assert init["args"] == ["backup", "init"]
    jobs = {
        m["metadata"]["name"]: m["spec"]
        for m in of_kind(everything, "CronJob")
        if not m["metadata"]["name"].endswith("-archive-base")
    }
    backups = [
        spec["jobTemplate"]["spec"]["template"]["spec"]["containers"][0] for spec in jobs.values()
    ]
    for container in (*containers, init, *backups):
        made = load(values_of(container))
        assert (made.backup.url, made.backup.keep_backups) == ("s3://bucket/backups", 14)
        # A drill compares all tables with the source.
        role = "postgres-drill" if "--drill" in container["args"] else "headrace-postgres-backup"
        assert secrets_of(container)["POSTGRES_BRIDGE_USER"] == role
        assert stores_of(container) == ["backup-store"]
    assert all(spec["concurrencyPolicy"] == "Forbid" for spec in jobs.values())


def test_each_slot_takes_its_base_snapshots_with_the_rights_of_a_snapshot() -> None:
    everything = CHART / "ci/everything.yaml"
    archivers = {
        values_of(container)["HEADRACE_SLOT"]: container
        for _, _, container in pods(everything)
        if container.get("args") == ["archiver"]
    }
    jobs = {
        manifest["metadata"]["name"]: manifest["spec"]
        for manifest in of_kind(everything, "CronJob")
        if manifest["metadata"]["name"].endswith("-archive-base")
    }
    assert set(jobs) == {"headrace-orders-slot-archive-base", "headrace-people-archive-base"}
    for spec in jobs.values():
        assert spec["concurrencyPolicy"] == "Forbid"
        (container,) = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        made = load(values_of(container))
        archiver = archivers.pop(made.source.slot)
        assert made.archive.url == load(values_of(archiver)).archive.url
        assert made.source.publication == load(values_of(archiver)).source.publication
        assert container["image"] == archiver["image"]
        secrets = secrets_of(container)
        assert secrets["POSTGRES_BRIDGE_USER"] == "headrace-postgres-snapshot"
        assert secrets["NATS_BRIDGE_USER"] == "headrace-nats-archiver"
        assert stores_of(container) == stores_of(archiver) == ["archive-store"]
    assert not archivers


def test_every_scheduled_command_is_one_of_headrace() -> None:
    for values in SETS:
        for manifest in of_kind(values, "CronJob"):
            pod = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]
            words = pod["containers"][0]["args"]
            done = CliRunner().invoke(app, [*words, "--help"])
            assert done.exit_code == 0, (words, done.output)


def test_each_sink_is_a_deployment_with_its_part_of_a_file_that_is_valid() -> None:
    everything = CHART / "ci/everything.yaml"
    for slot, name in (("people", "orders"), ("orders-slot", "copies")):
        manifest = of_name("Deployment", f"headrace-{slot}-sink-{name}")
        pod = manifest["spec"]["template"]["spec"]
        container = pod["containers"][0]
        assert container["args"] == ["sink", name]
        assert manifest["spec"]["replicas"] == 1
        assert manifest["spec"]["strategy"] == {"type": "Recreate"}
        (volume,) = [one for one in pod["volumes"] if one["name"] == "configuration"]
        text = of_name("ConfigMap", volume["configMap"]["name"])["data"]["headrace.toml"]
        assert name in parse_sinks(text, "headrace.toml", {})
        assert load(values_of(container)).sinks.file == next(
            mount["mountPath"]
            for mount in container["volumeMounts"]
            if mount["name"] == "configuration"
        )
    kafka = container_of(everything, "people-sink-orders")
    # A sink reads the archive where the stream has lost events.
    assert stores_of(kafka) == ["kafka", "archive-store"]
    assert secrets_of(kafka)["NATS_BRIDGE_USER"] == "nats-of-orders"
    assert {"name": "files", "mountPath": "/etc/headrace/sink", "readOnly": True} in kafka[
        "volumeMounts"
    ]
    policy = of_name("NetworkPolicy", "headrace-people-sink-orders")["spec"]
    assert policy["egress"] == [{"ports": [{"port": 9092}]}]
    shared = of_name("NetworkPolicy", "headrace")["spec"]["egress"][1]["ports"]
    assert 9092 not in {entry["port"] for entry in shared}
    copies = container_of(everything, "orders-slot-sink-copies")
    assert secrets_of(copies)["NATS_BRIDGE_USER"] == "headrace-nats-sink"


def test_only_a_change_of_a_sink_restarts_it(tmp_path: Path) -> None:
    base = yaml.safe_load((CHART / "ci/everything.yaml").read_text())
    base["sinks"][1]["toml"] = 'to = "s3://bucket/other"'
    (tmp_path / "changed.yaml").write_text(yaml.safe_dump(base))
    annotations = [
        of_name("Deployment", name, values)["spec"]["template"]["metadata"]["annotations"]
        for name in ("headrace-people-sink-orders", "headrace-orders-slot-sink-copies")
        for values in (CHART / "ci/everything.yaml", tmp_path / "changed.yaml")
    ]
    assert annotations[0] == annotations[1]
    assert annotations[2] != annotations[3]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (("sql.enabled=true",), "sql.enabled needs lake.url"),
        (
            ("sinks[0].name=a", "sinks[0].toml=x", "sinks[0].slot=nobody"),
            "sinks: a names the slot nobody",
        ),
        (
            ("sinks[0].name=a", "sinks[0].toml=x", "sinks[1].name=a", "sinks[1].toml=x"),
            "sinks: two sinks have one name",
        ),
    ],
)
def test_values_that_contradict_each_other_are_refused(values: tuple[str, ...], told: str) -> None:
    done = with_values(*values)
    assert done.returncode != 0
    assert told in done.stderr


def test_a_mirror_is_one_for_all_slots_and_its_password_is_no_argument() -> None:
    everything = CHART / "ci/everything.yaml"
    mirrors = [container for name, _, container in pods(everything) if name.endswith("-mirror")]
    assert len(mirrors) == 1
    tables = [
        word.removeprefix("--table=") for word in mirrors[0]["args"] if word.startswith("--table=")
    ]
    assert table_names(tables) == (("public", "users"), ("app", "orders"))
    policy = of_name("NetworkPolicy", "headrace")["spec"]["egress"][1]["ports"]
    assert {5433, 6432} <= {entry["port"] for entry in policy}
    assert (
        with_values("mirror.enabled=true", "mirror.to=postgresql://me:secret@host/copy").returncode
        != 0
    )


def test_two_suites_of_one_slot_are_refused() -> None:
    done = with_values(
        "slots[1].name=headrace", "slots[1].publication=other", "slots[0].name=headrace"
    )
    assert done.returncode != 0
    assert "slots" in done.stderr


def test_the_one_that_holds_the_slot_ends_before_the_next_begins() -> None:
    """With one replica, a new pod could never become ready next to the old one."""
    for manifest in of_kind(CHART / "ci/own-spark.yaml", "Deployment"):
        container = manifest["spec"]["template"]["spec"]["containers"][0]
        if container["args"][0] in {
            "wal-reader",
            "publisher",
            "snapshot-responder",
            "audit-writer",
        }:
            assert manifest["spec"]["strategy"]["rollingUpdate"] == {
                "maxSurge": 0,
                "maxUnavailable": 1,
            }
            assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_a_standby_holds_up_an_upgrade_only_if_it_could_not_take_over() -> None:
    for manifest in of_kind(CHART / "ci/minimal.yaml", "Deployment"):
        if manifest["spec"]["replicas"] > 1:
            container = manifest["spec"]["template"]["spec"]["containers"][0]
            assert container["readinessProbe"]["httpGet"]["path"] == "/standbyz"
            assert manifest["spec"]["minReadySeconds"] > 0


@pytest.mark.parametrize(
    "wrong",
    [
        "postgres.sslmode=sometimes",
        "nats.url=localhost:4222",
        "services.publisher.replica=2",
        "slots[0].name=Not-A-Slot",
        "slots[0].publication=",
        "settings.HEADRACE.x=1",
        "archive.url=file:///tmp",
        "archive.jobs[0].name=no-schedule",
        "lake.url=file:///tmp",
        "backup.url=file:///tmp",
        "backup.jobs[0].name=no-schedule",
        "sinks[0].name=without-toml",
        "sql.replica=2",
        "console.token=written-here",
        "audit.schema=no-name",
        "mirror.to=sqlite:///copy.db",
        "nonsense=1",
    ],
)
def test_a_wrong_value_is_refused_by_name(wrong: str) -> None:
    done = with_values(wrong)
    assert done.returncode != 0
    assert wrong.partition("=")[0].replace("[0]", "").split(".")[0] in done.stderr


@pytest.mark.parametrize("needed", ["postgres.host", "postgres.database", "nats.url"])
def test_what_must_be_set_is_asked_for(needed: str) -> None:
    done = with_values(f"{needed}=")
    assert done.returncode != 0
    assert f"{needed} must be set" in done.stderr


def test_the_operators_objects_hold_the_alerts_and_dashboards() -> None:
    everything = CHART / "ci/everything.yaml"
    rule = next(of_kind(everything, "PrometheusRule"))
    assert rule["spec"] == yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())
    jobs = {}
    for monitor in of_kind(everything, "ServiceMonitor"):
        (endpoint,), component = (
            monitor["spec"]["endpoints"],
            monitor["spec"]["selector"]["matchLabels"],
        )
        assert endpoint["honorLabels"] is True
        jobs[component["app.kubernetes.io/component"]] = endpoint["relabelings"]
    assert jobs == {
        name: [{"targetLabel": "job", "replacement": job}]
        for name, job in {"telemetry": "headrace", "mirror": "headrace-mirror"}.items()
    }
    dashboards = of_name("ConfigMap", "headrace-dashboards")["data"]
    shipped = {
        f"headrace-{path.name}": path
        for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")
    }
    assert {name: json.loads(text) for name, text in dashboards.items()} == {
        name: json.loads(path.read_text()) for name, path in shipped.items()
    }


def test_init_runs_before_the_services_that_wait_for_what_it_creates() -> None:
    # `helm install --wait` runs later hooks when every pod is ready, and no pod is before init.
    everything = CHART / "ci/everything.yaml"
    jobs = [job for job in of_kind(everything, "Job") if job["metadata"]["name"].endswith("-init")]
    assert jobs
    of_the_release = {
        each["metadata"]["name"]
        for each in of_kind(everything, "ConfigMap", "Secret", "ServiceAccount")
    }
    for job in jobs:
        hooks = job["metadata"]["annotations"]["helm.sh/hook"].split(",")
        assert set(hooks) == {"pre-install", "pre-upgrade"}
        # Nothing of the release is there yet.
        pod = job["spec"]["template"]["spec"]
        needed = json.dumps([pod.get("volumes"), pod["containers"], pod.get("serviceAccountName")])
        assert [name for name in of_the_release if f'"{name}"' in needed] == []


def test_the_notes_tell_the_next_step() -> None:
    done = helm("install", "headrace", CHART, "--dry-run=client", "-f", CHART / "ci/minimal.yaml")
    # Without a cluster, Helm does not render the notes: read them as a template would.
    text = done.stdout if done.returncode == 0 else (CHART / "templates/NOTES.txt").read_text()
    for step in ("get pods", "port-forward", "/status", "headrace init", "docs/runbooks.md"):
        assert step in text
