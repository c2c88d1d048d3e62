"""The suite as compose.yaml deploys it, without a container engine: its servers' settings, roles
and permissions, and each service with exactly its command, environment and user.

Only the values that depend on a container's network are replaced: host names by loopback, and the
services' ports by free ones. If tests run as root, services run as `nobody`, with only the right to
read files (the interpreter may be in root's home); otherwise as the user of the tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import nats
import pyspark
from nats.aio.client import Client

from headrace.embedded.account import unprivileged_account
from headrace.embedded.java import java_for_spark
from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.ports import free_port
from headrace.embedded.postgres import SUPERUSER, EmbeddedPostgres
from headrace.embedded.postgres_install import postgres_binaries
from headrace.testing.servers import POSTGRES_TEST_SETTINGS, SessionServers
from tests.chart.composition import ROOT, Service, services

SUITE = ("wal-reader", "publisher", "snapshot-responder", "schema-publisher", "telemetry")
PROBE = ROOT / "deploy/docker/probe.py"
DATABASE = "headrace"
# No service of the suite has it: the command is given it.
MIRROR_PORT = "9098"
READY_TIMEOUT_S = 60.0
SPARK_TIMEOUT_S = 180.0
_SUPERUSERS = "secret-of-the-superuser"
_SECRETS = {
    name: f"secret-{name.lower().replace('_', '-')}"
    for name in (
        *("POSTGRES_PASSWORD", "PG_READER_PASSWORD", "PG_CATALOG_PASSWORD", "PG_SNAPSHOT_PASSWORD"),
        *(
            "PG_AUDIT_PASSWORD",
            "NATS_AUDIT_PASSWORD",
            "NATS_MIRROR_PASSWORD",
            "HEADRACE_AUDIT_TOKEN",
        ),
        *(
            "NATS_ADMIN_PASSWORD",
            "NATS_READER_PASSWORD",
            "NATS_PUBLISHER_PASSWORD",
            "NATS_SNAPSHOT_PASSWORD",
        ),
        *(
            "NATS_SCHEMA_PASSWORD",
            "NATS_TELEMETRY_PASSWORD",
            "NATS_ARCHIVER_PASSWORD",
            "NATS_CONSOLE_PASSWORD",
            "NATS_LAKE_PASSWORD",
            "NATS_SQL_PASSWORD",
            "NATS_BACKUP_PASSWORD",
            "NATS_SINK_PASSWORD",
            "HEADRACE_LAKE_TOKEN",
            "PG_BACKUP_PASSWORD",
            "NATS_CONSUMER_PASSWORD",
        ),
        "HEADRACE_SHUTDOWN_TOKEN",
    )
}


def postgres_settings(composed: Service) -> dict[str, str]:
    """What compose starts PostgreSQL with."""
    pairs = (
        part.removeprefix("-c").partition("=") for part in composed.command if part.startswith("-c")
    )
    return {name: value for name, _, value in pairs}


def nats_configuration(secrets: Mapping[str, str]) -> str:
    """The shipped users and permissions; listener and store are the test server's own."""
    text = (ROOT / "deploy/nats/nats.conf").read_text()
    # An absolute path after `include` is not one to nats-server.
    permissions = (ROOT / "deploy/nats/permissions.conf").read_text()
    shipped = permissions + text[text.index("authorization {") :]
    values = "".join(
        f'{name}: "{value}"\n' for name, value in secrets.items() if name.startswith("NATS_")
    )
    return f"{values}{shipped}"


def make_roles(
    server: EmbeddedPostgres, secrets: Mapping[str, str], database: str = DATABASE
) -> None:
    """Run the shipped SQL as it is run by hand."""
    psql = postgres_binaries(server.version, None) / "psql"
    given = {
        f"{role}_password": secrets[f"PG_{role.upper()}_PASSWORD"]
        for role in ("reader", "catalog", "snapshot", "audit", "backup")
    }
    variables = [part for name, value in given.items() for part in ("-v", f"{name}={value}")]
    command = [
        str(psql),
        server.dsn(database),
        "-X",
        "-q",
        *variables,
        "-f",
        str(ROOT / "deploy/postgres/roles.sql"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def as_image_user(command: list[str]) -> list[str]:
    """The command under a user without rights, as the image's is, if this process may change its
    own.
    """
    account = unprivileged_account()
    if account is None:
        return command
    reading = "-all,+dac_read_search"
    user = [f"--reuid={account.uid}", f"--regid={account.gid}", "--clear-groups", "--no-new-privs"]
    return ["setpriv", *user, f"--inh-caps={reading}", f"--ambient-caps={reading}", *command]


@dataclass(slots=True)
class Deployment:
    """Servers and services; `secrets` are what a .env would hold."""

    postgres: EmbeddedPostgres
    nats_server: EmbeddedNats
    folder: Path
    secrets: Mapping[str, str]
    more: Mapping[str, str] = field(default_factory=dict)
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    # The address of Spark Connect; without it, the responder has a separate Spark.
    spark_remote: str = ""

    @property
    def composed(self) -> dict[str, Service]:
        outside = {
            "PG_HOST": "127.0.0.1",
            "PG_PORT": str(self.postgres.port),
            "NATS_URL": self.nats_server.url,
        }
        composed: dict[str, Service] = services({**self.secrets, **outside, **self.more})
        return composed

    def environment(self, name: str) -> dict[str, str]:
        """Compose's, on this machine's ports."""
        given: dict[str, str] = self.composed[name].environment
        if name == "init":
            # The one name that differs: the embedded server's superuser.
            given |= {"POSTGRES_BRIDGE_USER": SUPERUSER, "POSTGRES_BRIDGE_PASSWORD": _SUPERUSERS}
        # The image's PATH and HOME; nothing of this shell's.
        here = {
            "PATH": os.defpath,
            "HOME": str(self.folder),
            "HEADRACE_HTTP_PORT": "0",
            "HEADRACE_HTTP_HOST": "127.0.0.1",
            # A machine that runs many tests together starts a JVM slowly.
            "HEADRACE_SPARK_START_TIMEOUT_S": "240",
        }
        # Paths in a container.
        paths = {
            "HEADRACE_CONFIG": str(ROOT / "deploy/docker/headrace.toml"),
            "HEADRACE_SQL_FOLDER": str(self.folder / "sql"),
            "HEADRACE_SQL_HOST": "127.0.0.1",
        }
        here |= {variable: path for variable, path in paths.items() if variable in given}
        if name == "sql-server":
            here["HEADRACE_SQL_PORT"] = "0"
            # As the chart has it, for the source and the catalog: its own PostgreSQL has no TLS.
            here["PGSSLMODE"] = "verify-full"
        if name == "sink":
            here["HEADRACE_SINK_FILES_TO"] = f"file://{self.folder}/sinks"
        if "SPARK_REMOTE" in given:
            here["SPARK_REMOTE"] = self.spark_remote
        return {**given, **here}

    async def set_up(self) -> str:
        """Do what the init container does; return its output."""
        return await self.run("init")

    async def run(self, name: str) -> str:
        """Run a container to its end; return its output."""
        # A checkpoint that spares the disks takes minutes.
        words = [word for word in self.composed[name].command if word != "--spread"]
        command = [str(Path(sys.executable).with_name("headrace")), *words]
        process = await asyncio.create_subprocess_exec(
            *as_image_user(command),
            env=self.environment(name),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(READY_TIMEOUT_S):
            out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()
        return out.decode()

    async def start(self, name: str) -> None:
        # The mirror's port is on its command line.
        words = ["0" if word == MIRROR_PORT else word for word in self.composed[name].command]
        command = [str(Path(sys.executable).with_name("headrace")), *words]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = await asyncio.create_subprocess_exec(
                *as_image_user(command),
                env=self.environment(name),
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    async def start_spark(self) -> None:
        """The Spark Connect server, by compose's command in the image's environment, and what it
        says of its start.
        """
        port, home = free_port(), Path(pyspark.__file__).parent
        outside = "0.0.0.0"  # noqa: S104  # what a container binds; here it is loopback
        here = {"/opt/headrace/pyspark": str(home), outside: "127.0.0.1", "15002": str(port)}
        command = [str(word) for word in self.composed["spark"].body["entrypoint"]]
        for there, instead in here.items():
            assert any(there in word for word in command), there
            command = [word.replace(there, instead) for word in command]
        # The image's own ENV.
        image = {
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_DIRS": "/tmp",
        }
        java = java_for_spark(self.folder).environment()
        with (self.folder / "spark.log").open("ab") as log:
            self.running["spark"] = await asyncio.create_subprocess_exec(
                *as_image_user(command),
                env={**java, **image, **self.environment("spark")},
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        async with asyncio.timeout(SPARK_TIMEOUT_S):
            while "server started at" not in self.log("spark"):
                assert self.running["spark"].returncode is None, self.log("spark")[-4000:]
                await asyncio.sleep(0.2)
        self.spark_remote = f"sc://127.0.0.1:{port}"

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def port(self, name: str, event_name: str = "http_listening") -> int | None:
        """The port it listens on, once it reports it."""
        events = (json.loads(line) for line in self.log(name).splitlines() if line.startswith("{"))
        return next(
            (int(event["port"]) for event in events if event.get("event") == event_name), None
        )

    async def ready(self, *names: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until these are ready, by their own word."""
        async with aiohttp.ClientSession() as http:
            for name in names:
                await self._ready(http, name, timeout_s)

    async def _ready(self, http: aiohttp.ClientSession, name: str, timeout_s: float) -> None:
        last: Any = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    assert self.running[name].returncode is None, self.log(name)[-4000:]
                    if (port := self.port(name)) is not None:
                        async with http.get(f"http://127.0.0.1:{port}/readyz") as answer:
                            last = await answer.text()
                            if answer.status == 200:
                                return
                    await asyncio.sleep(0.1)
        except TimeoutError:
            logs = "\n".join(self.log(each)[-2500:] for each in self.running)
            raise AssertionError(f"{name} is not ready: {last}\n{logs}") from None

    async def probed(self, name: str) -> int:
        """Run the container's health check; its exit code."""
        python, *options, script, _, path = self.composed[name].probe
        assert (python, script) == ("/usr/bin/python3", "/opt/headrace/probe.py")
        process = await asyncio.create_subprocess_exec(
            *[sys.executable, *options, str(PROBE), str(self.port(name)), path],
            stderr=asyncio.subprocess.DEVNULL,
        )
        return await process.wait()

    async def stop(self) -> dict[str, int]:
        """SIGTERM to all, as Compose does; their exit codes."""
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        async with asyncio.timeout(30):
            return {name: await process.wait() for name, process in self.running.items()}

    async def kill(self) -> None:
        for process in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def connect(self, user: str, **options: Any) -> Client:
        """As a user of nats.conf."""
        variable = {
            "wal-reader": "READER",
            "snapshot-responder": "SNAPSHOT",
            "schema-publisher": "SCHEMA",
            "sql-server": "SQL",
            "wal-archiver": "BACKUP",
        }
        password = self.secrets[f"NATS_{variable.get(user, user.upper())}_PASSWORD"]
        return await nats.connect(self.nats_server.url, user=user, password=password, **options)


@contextlib.asynccontextmanager
async def deployed(
    session_servers: SessionServers, folder: Path, **more: str
) -> AsyncIterator[Deployment]:
    """Servers as compose sets them up, with separate passwords; nothing of the suite runs yet."""
    settings = {**postgres_settings(services()["postgres"]), "password_encryption": "scram-sha-256"}
    store = session_servers.folder / f"deployed-{folder.name}"
    store.mkdir(mode=0o711)
    postgres = EmbeddedPostgres(
        store, 18, settings={**POSTGRES_TEST_SETTINGS, **settings}, password=_SUPERUSERS
    )
    nats_server = session_servers.new_nats(config=nats_configuration(_SECRETS))
    made = Deployment(postgres, nats_server, folder, _SECRETS, more)
    # The image's user writes here, as it may in a container's /tmp.
    await asyncio.to_thread(folder.chmod, 0o777)
    try:
        await postgres.start()
        await nats_server.start()
        await asyncio.to_thread(_make_database, made)
        yield made
    finally:
        await made.kill()
        postgres.remove_blocking()
        session_servers.discard(nats_server)


def _make_database(made: Deployment) -> None:
    psql = postgres_binaries(made.postgres.version, None) / "psql"
    statement = f"CREATE DATABASE {DATABASE}"
    subprocess.run(
        [str(psql), made.postgres.dsn(), "-X", "-q", "-c", statement], check=True, timeout=60
    )
    make_roles(made.postgres, made.secrets)
