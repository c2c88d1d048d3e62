"""Secrets come from files, and go nowhere: not into a log, an error, a process list, a metric, a
status or a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import nats
import pytest
from nats.aio.msg import Msg

from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.settings import load
from headrace.testing.database import Database
from headrace.testing.plugin import OwnNats, OwnPostgres
from headrace.testing.process import command
from headrace.testing.responder import child_pids
from headrace.testing.suite import Suite
from tests.support.scram import server_with_password

SECRETS = {
    "POSTGRES_BRIDGE_PASSWORD": "pg-Swordfish-1",
    "NATS_BRIDGE_PASSWORD": "nats-Swordfish-2",
    "HEADRACE_SHUTDOWN_TOKEN": "stop-Swordfish-3",
}
ROW = "row-Swordfish-4"
SERVICES = ("publisher", "wal-reader", "schema-publisher", "snapshot-responder", "telemetry")
PATHS = (
    "/livez",
    "/readyz",
    "/metrics",
    "/status",
    "/health",
    "/streams/info?stream=CDC",
    "/none",
    "/shutdown",
)


@dataclass(eq=False)
class Rig:
    postgres: EmbeddedPostgres
    nats: EmbeddedNats
    environment: dict[str, str]


def in_files(folder: Path) -> dict[str, str]:
    """Each secret in a file that its setting names."""
    named = {}
    for env, secret in SECRETS.items():
        path = folder / env.lower()
        path.touch(mode=0o600)
        path.write_text(f"{secret}\n")
        named[f"{env}_FILE"] = str(path)
    return named


@pytest.fixture
async def rig(own_postgres: OwnPostgres, own_nats: OwnNats, tmp_path: Path) -> Rig:
    postgres = await server_with_password(
        own_postgres,
        "bridge",
        SECRETS["POSTGRES_BRIDGE_PASSWORD"],
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION headrace FOR ALL TABLES",
        "GRANT SELECT ON t TO bridge",
    )
    password = SECRETS["NATS_BRIDGE_PASSWORD"]
    server = await own_nats(
        config={"authorization": {"users": [{"user": "bridge", "password": password}]}}
    )
    environment = {
        "PG_HOST": "127.0.0.1",
        "PG_PORT": str(postgres.port),
        "PG_DB": "postgres",
        "POSTGRES_BRIDGE_USER": "bridge",
        "NATS_URL": f"nats://127.0.0.1:{server.port}",
        "NATS_BRIDGE_USER": "bridge",
        "HEADRACE_LOG_LEVEL": "debug",
        "HEADRACE_NATS_RECONNECT_WAIT_S": "0.2",
        "HEADRACE_LEASE_TTL_S": "1",
        "HEADRACE_METRICS_INTERVAL_S": "1",
        **in_files(tmp_path),
    }
    return Rig(postgres, server, environment)


def port_of(suite: Suite, service: str) -> int:
    found = re.findall(r"event=http_listening host=\S+ port=(\d+)", suite.log(service))
    return int(found[-1])


async def told_over_http(suite: Suite) -> str:
    """Everything that every service answers, to good requests and to bad ones."""
    said = []
    async with aiohttp.ClientSession() as http:
        for service in SERVICES:
            if not suite.running(service):
                # In trouble a service may end itself, for a supervisor to start it again.
                continue
            root = f"http://127.0.0.1:{port_of(suite, service)}"
            for path in PATHS:
                async with http.get(root + path) as answer:
                    said.append(f"{answer.headers} {await answer.text()}")
            # On loopback a stop needs no token; a browser's is refused.
            headers = {"Authorization": "Bearer guess", "Origin": "http://elsewhere"}
            async with http.post(f"{root}/shutdown", headers=headers) as answer:
                said.append(await answer.text())
    return "\n".join(said)


def seen_in_the_process_list(suite: Suite) -> str:
    pids = [suite.pid(service) for service in SERVICES]
    pids += [child for pid in pids for child in child_pids(pid)]
    lines = []
    for pid in pids:
        with contextlib.suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_text())
    return "\n".join(lines)


async def told_on_the_bus(rig: Rig, seconds: float) -> str:
    """Everything that NATS carries meanwhile, and what its state bucket holds."""
    password = SECRETS["NATS_BRIDGE_PASSWORD"]
    client = await nats.connect(rig.nats.url, user="bridge", password=password)
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject.encode() + b" " + message.data)

    try:
        await client.subscribe("headrace.>", cb=hear)
        await asyncio.sleep(seconds)
        state = await client.jetstream().key_value("headrace_state")
        keys = await state.keys()
        heard += [(await state.get(key)).value or b"" for key in keys]
    finally:
        await client.close()
    return b"\n".join(heard).decode(errors="replace")


@pytest.mark.slow
async def test_no_secret_and_no_row_is_in_anything_that_the_suite_says(
    rig: Rig, tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    async with Suite(rig.environment, tmp_path / "logs", services=SERVICES) as suite:
        await suite.logged("publisher", "epoch_joined", timeout_s=60)
        for service in SERVICES:
            await suite.logged(service, "http_listening")
        database = Database(rig.postgres, "postgres")
        await database.execute("INSERT INTO t VALUES (1, $1)", ROW)
        assert all(suite.running(service) for service in SERVICES)
        said = {"http": await told_over_http(suite), "processes": seen_in_the_process_list(suite)}
        bus = await told_on_the_bus(rig, 2)
        # Trouble is when a password slips into a message.
        await rig.nats.kill()
        await rig.postgres.kill()
        await asyncio.sleep(3)
        said["http in trouble"] = await told_over_http(suite)
        await rig.postgres.start()
        await rig.nats.start()
        await database.close()
        said["logs"] = "".join(suite.log(service) for service in SERVICES)
    outcome = await command(rig.environment, "doctor", timeout_s=120)
    said["doctor"] = outcome.out + outcome.err
    wrong = {
        "POSTGRES_BRIDGE_PASSWORD": "wrong-Swordfish-5",
        "NATS_BRIDGE_PASSWORD": "wrong-Swordfish-6",
    }
    outcome = await command(rig.environment | wrong, "doctor", timeout_s=120)
    said["refused"] = outcome.out + outcome.err
    for where, text in said.items():
        assert text, where
        assert "Swordfish" not in text, (where, re.findall(r".{80}Swordfish.{10}", text)[:3])
    # The bus carries rows, which is what it is for, and no secret.
    assert not [secret for secret in SECRETS.values() if secret in bus]


async def test_a_url_with_a_password_is_shown_without_it(own_nats: OwnNats, tmp_path: Path) -> None:
    server = await own_nats(
        config={"authorization": {"users": [{"user": "u", "password": "right"}]}}
    )
    environment = {
        "NATS_URL": f"nats://u:wrong-Swordfish@127.0.0.1:{server.port}",
        "HEADRACE_LOG_LEVEL": "debug",
    }
    async with Suite(environment, tmp_path, services=("publisher",)) as suite:
        assert await suite.exit_code("publisher", 30) == 1
        assert "refuses these credentials" in suite.log("publisher")
        assert "Swordfish" not in suite.log("publisher")


def test_settings_show_no_secret_when_they_are_shown(tmp_path: Path) -> None:
    settings = load(
        {**SECRETS, "NATS_TOKEN": "token-Swordfish", "NATS_URL": "nats://u:url-Swordfish@h:4222"}
    )
    assert settings.postgres.password == SECRETS["POSTGRES_BRIDGE_PASSWORD"]
    assert "Swordfish" not in repr(settings)


def test_a_secret_comes_from_the_file_that_its_setting_names(tmp_path: Path) -> None:
    settings = load(in_files(tmp_path))
    assert settings.postgres.password == SECRETS["POSTGRES_BRIDGE_PASSWORD"]
    assert settings.nats.password == SECRETS["NATS_BRIDGE_PASSWORD"]
    assert settings.process.shutdown_token == SECRETS["HEADRACE_SHUTDOWN_TOKEN"]
