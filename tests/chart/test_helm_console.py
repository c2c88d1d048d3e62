"""The chart's console is closed: its tokens come from secrets, and only its clients reach it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from headrace.audit.settings import load_audit
from headrace.console.access import Access, access_of
from headrace.errors import SettingError
from headrace.settings import load
from headrace.suite.services import CONSOLE, TELEMETRY
from tests.chart.rendered import (
    CHART,
    container_of,
    of_name,
    pods,
    secrets_of,
    values_of,
    with_values,
)

EVERYTHING = CHART / "ci/everything.yaml"
SUITES = (("orders_slot", "orders-slot"), ("people", "people"))
# As in docs/console.md: someone whom a proxy names.
ACCESS = """
[[access]]
name = "on call"
groups = ["sre"]
role = "admin"
"""


def access(container: dict[str, Any], file_text: str | None, **tokens: str) -> Access:
    """The rules by which this container's console would start."""
    made = load({**values_of(container), **tokens})
    return access_of(made.console, made.process.http_host, file_text)


@pytest.mark.parametrize(("slot", "name"), SUITES)
def test_each_suite_has_a_console_that_reads_it_with_its_own_user(slot: str, name: str) -> None:
    container = container_of(EVERYTHING, f"{name}-console")
    made = load(values_of(container))
    assert made.source.slot == slot
    telemetry = of_name("Service", f"headrace-{name}-telemetry")
    host = telemetry["metadata"]["name"]
    assert telemetry["spec"]["ports"][0]["port"] == TELEMETRY.port
    assert made.process.telemetry_url == f"http://{host}:{TELEMETRY.port}"
    secrets = secrets_of(container)
    assert secrets["NATS_BRIDGE_USER"] == "headrace-nats-console"
    assert secrets["POSTGRES_BRIDGE_USER"] == "headrace-postgres-catalog"


def test_the_consoles_tokens_come_from_secrets_and_reach_no_other_service() -> None:
    container = container_of(EVERYTHING, "people-console")
    references = {
        entry["name"]: entry["valueFrom"]["secretKeyRef"]
        for entry in container["env"]
        if entry["name"] in {"HEADRACE_CONSOLE_TOKEN", "HEADRACE_CONSOLE_PROXY_SECRET"}
    }
    assert references == {
        "HEADRACE_CONSOLE_TOKEN": {"name": "console-token", "key": "token"},
        "HEADRACE_CONSOLE_PROXY_SECRET": {"name": "console-proxy", "key": "secret"},
    }
    holders = {
        other["name"]
        for _, _, other in pods(EVERYTHING)
        if any(entry["name"] in references for entry in other["env"])
    }
    assert holders == {"console"}


@pytest.mark.parametrize("place", ["settings", "console.settings", "slots[0].settings"])
@pytest.mark.parametrize("secret", ["HEADRACE_CONSOLE_TOKEN", "HEADRACE_CONSOLE_PROXY_SECRET"])
def test_a_token_in_the_values_is_refused(place: str, secret: str) -> None:
    slot = ("slots[0].name=headrace", "slots[0].publication=headrace")
    closed = ("console.enabled=true", "console.tokenSecret=t")
    assert with_values(*slot, *closed, f"{place}.HEADRACE_LOG_LEVEL=info").returncode == 0
    done = with_values(*slot, *closed, f"{place}.{secret}=written-here")
    assert done.returncode != 0
    assert secret in done.stderr


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ((), "console.enabled needs console.tokenSecret or console.accessSecret"),
        (("console.proxies[0]=10.0.0.7", "console.tokenSecret=t"), "console.proxies needs"),
        (("console.proxies[0]=10.0.0.7", "console.accessSecret=a"), "console.proxies needs"),
        (("console.tokenSecret=t", "console.auditSecret=a"), "console.auditSecret needs audit"),
    ],
)
def test_a_console_into_which_nobody_could_sign_in_is_refused(
    values: tuple[str, ...], told: str
) -> None:
    done = with_values("console.enabled=true", *values)
    assert done.returncode != 0
    assert told in done.stderr


def test_the_console_itself_would_refuse_what_the_chart_refuses() -> None:
    container = container_of(EVERYTHING, "people-console")
    with pytest.raises(SettingError, match="PROXY_SECRET"):
        access(container, ACCESS)
    rules = access(container, ACCESS, HEADRACE_CONSOLE_PROXY_SECRET="s", HEADRACE_CONSOLE_TOKEN="t")
    assert not rules.open_here
    assert rules.by_token("t") is not None
    assert rules.trusts("10.1.2.3", "s")
    assert not rules.trusts("10.2.0.1", "s")
    assert rules.by_proxy("ana", ["sre"]) is not None


def test_the_access_file_is_where_the_console_reads_it() -> None:
    pod, container = next(
        (pod, container) for name, pod, container in pods(EVERYTHING) if name.endswith("-console")
    )
    (volume,) = [one for one in pod["volumes"] if one["name"] == "console-access"]
    assert volume["secret"]["secretName"] == "console-access"
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "console-access"]
    assert mount["readOnly"] is True
    file = load(values_of(container)).console.access_file
    assert file == f"{mount['mountPath']}/access.toml"


def test_a_console_hides_what_the_trail_hides_and_reads_it_with_a_separate_role() -> None:
    for _, name in SUITES:
        console = container_of(EVERYTHING, f"{name}-console")
        trail = load_audit(values_of(console))
        writer = container_of(EVERYTHING, f"{name}-audit-writer")
        written = load_audit(values_of(writer))
        assert trail.enabled
        assert trail.redact == written.redact == ("users.password",)
        assert (trail.host, trail.port, trail.database, trail.schema, trail.table) == (
            *(written.host, written.port, written.database),
            *(written.schema, written.table),
        )
        assert secrets_of(console)["DEST_DB_USER"] == "console-audit"
        assert secrets_of(writer)["DEST_DB_USER"] == "headrace-postgres-audit"
        # The token of the writer's own page.
        assert "HEADRACE_AUDIT_TOKEN" in secrets_of(writer)
        assert "HEADRACE_AUDIT_TOKEN" not in secrets_of(console)


def test_the_console_reads_the_lake_the_backups_and_sql_with_rights_of_its_own() -> None:
    for slot, name in SUITES:
        container = container_of(EVERYTHING, f"{name}-console")
        made = load(values_of(container))
        assert made.lake.url == f"s3://bucket/lake/{slot}"
        secrets = secrets_of(container)
        assert secrets["HEADRACE_LAKE_CATALOG"] == "lake-catalog-reader"
        assert secrets["HEADRACE_CONSOLE_SQL_URL"] == "console-sql"
        assert "HEADRACE_LAKE_TOKEN" not in secrets
        assert container["envFrom"] == [{"secretRef": {"name": "stores-reader"}}]
    # The backups are of the whole cluster: the first suite's console shows them.
    stores = [load(values_of(container_of(EVERYTHING, f"{name}-console"))) for _, name in SUITES]
    assert [made.backup.url for made in stores] == ["s3://bucket/backups", None]


def test_without_secrets_of_its_own_a_console_has_those_of_what_it_shows() -> None:
    pairs = ["lake.url=s3://b/lake", "archive.url=s3://b/log", "lake.secrets[0]=lake-store"]
    pairs += ["backup.secrets[0]=backup-store", "console.enabled=true", "console.tokenSecret=t"]
    both = ["lake-store", "backup-store"]
    for more, wanted in (([], both[:1]), (["backup.url=s3://b/backups"], both)):
        done = with_values(*pairs, *more)
        assert done.returncode == 0, done.stderr
        (console,) = [
            m["spec"]["template"]["spec"]["containers"][0]
            for m in yaml.safe_load_all(done.stdout)
            if m and m["kind"] == "Deployment" and m["metadata"]["name"] == "headrace-console"
        ]
        found = [entry["secretRef"]["name"] for entry in console["envFrom"]]
        assert found == wanted


def test_the_sql_server_accepts_the_console_beside_its_clients() -> None:
    console = of_name("Deployment", "headrace-people-console")["spec"]["template"]["metadata"]
    (rule,) = of_name("NetworkPolicy", "headrace-people-sql-server")["spec"]["ingress"]
    clients, own = rule["from"]
    assert clients["namespaceSelector"]["matchLabels"]
    assert own["podSelector"]["matchLabels"].items() <= console["labels"].items()


def test_only_its_clients_reach_the_console_and_only_the_console_asks_telemetry() -> None:
    manifest = of_name("Deployment", "headrace-people-console")
    labels = manifest["spec"]["template"]["metadata"]["labels"].items()
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    assert container["ports"] == [{"name": "console", "containerPort": CONSOLE.port}]
    # The rule for metrics is by the name of the port, and this one has another name.
    shared = of_name("NetworkPolicy", "headrace")["spec"]
    assert {"port": "http"} in shared["ingress"][0]["ports"]
    policy = of_name("NetworkPolicy", "headrace-people-console")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels
    assert policy["ingress"] == [
        {
            "ports": [{"port": "console"}],
            "from": [
                {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}
            ],
        }
    ]
    asked = of_name("Deployment", "headrace-people-telemetry")["spec"]["template"]["metadata"]
    out, sql = policy["egress"]
    assert sql == {"ports": [{"port": 5441}]}
    assert out["ports"] == [{"port": TELEMETRY.port}]
    assert out["to"][0]["podSelector"]["matchLabels"].items() <= asked["labels"].items()
    (in_,) = of_name("NetworkPolicy", "headrace-people-telemetry")["spec"]["ingress"]
    assert in_["ports"] == [{"port": TELEMETRY.port}]
    assert in_["from"][0]["podSelector"]["matchLabels"].items() <= labels


def test_the_console_stays_reachable_while_nats_is_away() -> None:
    manifest = of_name("Deployment", "headrace-people-console")
    container = manifest["spec"]["template"]["spec"]["containers"][0]
    for probe in ("startup", "liveness", "readiness"):
        assert container[f"{probe}Probe"]["httpGet"] == {"path": "/livez", "port": "console"}
    # Telemetry is not ready then, and its status names the reason.
    assert of_name("Service", "headrace-people-telemetry")["spec"]["publishNotReadyAddresses"]
    service = of_name("Service", "headrace-people-console")["spec"]
    assert service["sessionAffinity"] == "ClientIP"
    assert service["ports"][0]["targetPort"] == "console"
    assert of_name("PodDisruptionBudget", "headrace-people-console")
