"""The chart's services sign in with each user's secret or with one for all: with passwords,
credentials files, nkeys or certificates.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.settings import load
from tests.chart.composition import COMPOSE, ROOT
from tests.chart.rendered import CHART, pods, rendered, values_of, with_values

ONE = CHART / "ci/one-secret.yaml"
CERTIFICATES = CHART / "ci/certificates.yaml"
NATS_USER, POSTGRES_USER = "/etc/headrace/nats-user", "/etc/headrace/postgres-user"
# Nothing in Compose needs these two: its catalog is a file, and a mirror's target is the user's.
OTHER_KEYS = {"HEADRACE_LAKE_CATALOG", "HEADRACE_MIRROR_PASSWORD"}


def keys_of(container: dict[str, Any]) -> dict[str, str]:
    """The key of each variable that comes from a secret."""
    return {
        entry["name"]: entry["valueFrom"]["secretKeyRef"]["key"]
        for entry in container["env"]
        if "valueFrom" in entry
    }


def composed_logins() -> dict[str, dict[str, str]]:
    """The users and the passwords' variables of each command in compose.yaml."""
    services = yaml.load(COMPOSE.read_text(), yaml.CSafeLoader)["services"]
    wanted = re.compile("(POSTGRES|NATS)_BRIDGE_(USER|PASSWORD)|DEST_DB_(USER|PASSWORD)")
    found: dict[str, dict[str, str]] = {}
    for service in services.values():
        if "headrace" not in service["image"] or not service.get("command"):
            continue
        environment = service["environment"]
        found.setdefault(service["command"][0], {}).update(
            {
                # `${NAME:-default}`: the name of a password, the default of a user.
                name: re.sub(r"^\$\{(\w+):-([\w-]*)\}$", r"\2" if "USER" in name else r"\1", value)
                for name, value in environment.items()
                if wanted.fullmatch(name)
            }
        )
    return found


def test_one_secret_may_be_made_of_what_env_sh_prints() -> None:
    printed = subprocess.run(
        ["/bin/sh", "deploy/docker/env.sh"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    names = {line.split("=")[0] for line in printed.splitlines()} | OTHER_KEYS
    for name, _, container in pods(ONE):
        references = [e["valueFrom"]["secretKeyRef"] for e in container["env"] if "valueFrom" in e]
        assert {reference["name"] for reference in references} == {"headrace"}, name
        assert {reference["key"] for reference in references} <= names, name
        # Without these, something is switched off. Without its token, nobody could use a console.
        left_out = {reference["key"] for reference in references if reference.get("optional")}
        optional = {f"HEADRACE_{part}_TOKEN" for part in ("SHUTDOWN", "AUDIT", "LAKE")}
        assert left_out <= optional, name


def test_with_one_secret_each_service_is_the_user_that_it_is_in_compose() -> None:
    composed = composed_logins()
    compared = set()
    for name, _, container in pods(ONE):
        command = container.get("args", ["spark"])[0]
        if command not in composed:
            continue
        compared.add(command)
        logins = composed[command] | {}
        if command == "init":
            logins["POSTGRES_BRIDGE_USER"] = "owner"
        if command == "console":
            # The chart shows the trail only with a separate secret.
            logins = {key: value for key, value in logins.items() if not key.startswith("DEST_")}
        given = values_of(container) | keys_of(container)
        assert {key: given.get(key) for key in logins} == logins, name
    assert {"wal-reader", "publisher", "backup", "sink", "mirror", "init"} <= compared


@pytest.mark.parametrize(
    ("how", "variables"),
    [
        ("credentials", {"NATS_CREDS": "user.creds"}),
        ("nkey", {"NATS_NKEY_SEED": "user.nk"}),
        ("certificate", {"NATS_TLS_CERT": "tls.crt", "NATS_TLS_KEY": "tls.key"}),
    ],
)
@pytest.mark.parametrize("shared", [False, True], ids=["own secrets", "one secret"])
def test_a_file_signs_in_to_nats_instead_of_a_password(
    tmp_path: Path, how: str, variables: dict[str, str], shared: bool
) -> None:
    given = yaml.safe_load(ONE.read_text())
    given["nats"]["authentication"] = how
    if not shared:
        del given["existingSecret"]
        given["console"]["tokenSecret"] = "console-token"
    (values := tmp_path / "values.yaml").write_text(yaml.safe_dump(given))
    users = set()
    for name, pod, container in pods(values):
        assert not {key for key in keys_of(container) if key.startswith("NATS_")}, name
        assert "NATS_BRIDGE_USER" not in values_of(container), name
        chosen = {key: values_of(container)[key] for key in variables}
        assert chosen == {key: f"{NATS_USER}/{file}" for key, file in variables.items()}, name
        (mount,) = [m for m in container["volumeMounts"] if m["name"] == "nats-user"]
        assert (mount["mountPath"], mount["readOnly"]) == (NATS_USER, True), name
        (volume,) = [v["secret"] for v in pod["volumes"] if v["name"] == "nats-user"]
        assert {item["path"] for item in volume["items"]} == set(variables.values()), name
        if shared:
            assert volume["secretName"] == "headrace"
            users |= {item["key"].rpartition(".")[0] for item in volume["items"]}
        else:
            assert [item["key"] for item in volume["items"]] == [*variables.values()], name
            users.add(volume["secretName"].removeprefix("headrace-nats-"))
    text = (ROOT / "deploy/nats/nats.conf").read_text()
    shipped = set(re.findall(r"\{user: ([\w-]+),", text))
    assert users == shipped - {"consumer"}


def test_certificates_sign_in_to_both_servers() -> None:
    for name, pod, container in pods(CERTIFICATES):
        settings = load(values_of(container))
        assert str(settings.nats.tls_cert) == f"{NATS_USER}/tls.crt", name
        assert "PASSWORD" not in " ".join(set(keys_of(container)) - {"PGPASSWORD"}), name
        volumes = {v["name"]: v["secret"] for v in pod["volumes"] if "secret" in v}
        # Root owns the files; libpq refuses a key that everyone may read.
        assert all(v.get("defaultMode", 0o440) == 0o440 for v in volumes.values()), name
        if container.get("args", [""])[0] == "mirror":
            assert "postgres-user" not in volumes, "it reads no source"
            continue
        assert values_of(container)["PGSSLKEY"] == f"{POSTGRES_USER}/tls.key", name
        assert keys_of(container)["POSTGRES_BRIDGE_USER"] == "username", name
        secret = volumes["postgres-user"]["secretName"]
        reference = next(e for e in container["env"] if e["name"] == "POSTGRES_BRIDGE_USER")
        assert reference["valueFrom"]["secretKeyRef"]["name"] == secret, name


def test_one_certificate_of_all_services_comes_with_each_ones_password() -> None:
    done = with_values("nats.clientSecret=nats-client")
    assert done.returncode == 0, done.stderr
    manifests = [m for m in yaml.safe_load_all(done.stdout) if m and m["kind"] == "Deployment"]
    assert manifests
    for manifest in manifests:
        pod = manifest["spec"]["template"]["spec"]
        container = pod["containers"][0]
        made = load(values_of(container)).nats
        assert (str(made.tls_cert), str(made.tls_key)) == (
            "/etc/headrace/nats-client/tls.crt",
            "/etc/headrace/nats-client/tls.key",
        )
        assert keys_of(container)["NATS_BRIDGE_PASSWORD"] == "password"
        mounted = {m["name"] for m in container["volumeMounts"]}
        assert "nats-client" in mounted & {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (("nats.authentication=certificate", "nats.clientSecret=c"), "nats.clientSecret: with"),
        (("postgres.authentication=certificate", "postgres.sslmode=disable"), "needs TLS"),
        (("nats.authentication=kerberos",), "nats/authentication"),
        (("postgres.authentication=peer",), "postgres/authentication"),
    ],
)
def test_logins_that_can_not_work_are_refused(values: tuple[str, ...], why: str) -> None:
    done = with_values(*values)
    assert done.returncode != 0
    assert why in done.stderr.replace("nats.authentication:", "nats/authentication").replace(
        "postgres.authentication:", "postgres/authentication"
    ), done.stderr


def test_helm_test_runs_the_doctor_with_the_administrators_rights() -> None:
    doctors = [m for m in rendered(CERTIFICATES) if m["kind"] == "Pod"]
    (annotations,) = [doctor["metadata"]["annotations"] for doctor in doctors]
    assert annotations["helm.sh/hook"] == "test"
    (spec,) = [doctor["spec"] for doctor in doctors]
    assert spec["containers"][0]["args"] == ["doctor"]
    secrets = {v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v}
    assert {"headrace-postgres-admin", "headrace-nats-admin"} <= secrets
