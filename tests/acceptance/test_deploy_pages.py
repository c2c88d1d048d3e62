"""Every command of the pages on deployment, in order: run where no container engine or cluster is
needed, else checked.

`docker`, `kubectl` and `curl` are stand-ins that write down how they were called; what they name
(files, profiles, services, targets, ports, secrets) must be there, and SQL that goes through them
is run. `psql`, `helm` and the shell are real.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest
import yaml

from headrace.audit.settings import load_audit
from headrace.embedded.postgres import SUPERUSER, EmbeddedPostgres
from headrace.embedded.postgres_install import postgres_binaries
from headrace.testing.plugin import OwnPostgres
from tests.chart.composition import HAS_LOCKED_HELM, ROOT, services

BLOCK = re.compile(r"^```(sh|yaml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
STAND_INS = ("docker", "kubectl", "curl")
STAND_IN = """#!{python}
import json, os, sys
with open({calls!r}, "a") as calls:
    calls.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
"""


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell in a copy of what the pages need, with the stand-ins on its path."""

    folder: Path
    server: EmbeddedPostgres

    def run(self, commands: str) -> str:
        tools = [
            self.folder / "bin",
            postgres_binaries(18, None),
            Path(sys.executable).parent,
            os.environ["PATH"],
        ]
        # libpq's names, for psql.
        server = {"PGHOST": "127.0.0.1", "PGPORT": str(self.server.port), "PGUSER": SUPERUSER}
        environment = {**server, "PATH": ":".join(map(str, tools)), "HOME": str(self.folder)}
        command = ["bash", "-euo", "pipefail", "-c", commands]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    def calls(self, *programs: str) -> list[list[str]]:
        """How the stand-ins were called."""
        lines = (
            (self.folder / "calls").read_text().splitlines()
            if (self.folder / "calls").exists()
            else []
        )
        return [call[1:] for call in map(json.loads, lines) if call[0] in programs]


@pytest.fixture
async def shell(tmp_path: Path, own_postgres: OwnPostgres) -> Shell:
    (tmp_path / "bin").mkdir()
    for name in STAND_INS:
        (program := tmp_path / "bin" / name).write_text(
            STAND_IN.format(python=sys.executable, calls=str(tmp_path / "calls"))
        )
        program.chmod(0o755)
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    for name in ("compose.yaml", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return Shell(tmp_path, await own_postgres())


def blocks(page: str, kind: str) -> list[str]:
    return [text for found, text in BLOCK.findall((ROOT / page).read_text()) if found == kind]


def options(words: list[str], *names: str) -> Iterator[str]:
    return (value for name, value in pairwise(words) if name in names)


def check_build(words: list[str], shell: Shell) -> None:
    (dockerfile,) = options(words, "-f")
    assert words[-1] == "."
    text = (shell.folder / dockerfile).read_text()
    targets = re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE)
    (target,) = [*options(words, "--target")] or targets[-1:]
    (tag,) = options(words, "-t")
    images = {
        service.body["image"]: service.body.get("build", {}).get("target")
        for service in services().values()
    }
    wanted = {name: into for name, into in images.items() if into is not None}
    assert wanted[tag] == target


def check_compose(words: list[str], shell: Shell) -> list[str]:
    """Check that everything which a call of Compose names exists; return the SQL that it would run."""
    known = services()
    profiles = {
        profile for service in known.values() for profile in service.body.get("profiles", [])
    }
    assert set(options(words, "--profile")) <= profiles
    assert all((shell.folder / file).exists() for file in options(words, "-f"))
    at = next(
        index for index, word in enumerate(words) if word in {"up", "exec", "run", "logs", "down"}
    )
    rest = words[at + 1 :]
    if words[at] == "run":
        assert rest[:1] == ["--rm"]
        assert rest[1] in known
        return []
    if words[at] == "exec":
        service, program, *arguments = rest
        assert service in known
        if program == "/usr/bin/python3":
            assert arguments[:2] == ["-m", "headrace.cli"]
            return []
        if program == "sh":
            assert "/headrace/roles.sql" in arguments[-1]
            return []
        assert program == "psql"
        assert arguments[:3] == ["-U", "postgres", known["postgres"].environment["POSTGRES_DB"]]
        return list(options(arguments, "-c"))
    assert {word for word in rest if not word.startswith("-")} <= known.keys()
    assert {word for word in rest if word.startswith("-")} <= {"--detach", "--wait"}
    return []


async def test_every_command_of_the_page_on_compose_is_one_that_works(shell: Shell) -> None:
    for commands in blocks("docs/deploy-docker.md", "sh"):
        shell.run(commands)
    written = dict(line.split("=", 1) for line in (shell.folder / ".env").read_text().splitlines())
    assert written["GRAFANA_PASSWORD"]
    calls = shell.calls("docker")
    statements: list[str] = []
    for kind, *words in calls:
        if kind == "build":
            check_build(words, shell)
        else:
            assert kind == "compose"
            statements += check_compose(words, shell)
    assert {"build", "compose"} == {call[0] for call in calls}
    for (url,) in (
        [word for word in call if word.startswith("http")] for call in shell.calls("curl")
    ):
        port = re.search(r":(\d+)/", url)
        assert port
        assert f"127.0.0.1:{port[1]}" in [
            ":".join(p.split(":")[:2]) for s in services().values() for p in s.published
        ]

    session = await asyncpg.connect(shell.server.dsn())
    trail = load_audit(services()["audit-writer"].environment)
    await session.execute(
        f"CREATE SCHEMA {trail.schema}; CREATE TABLE {trail.schema}.{trail.table} (LIKE pg_class)"
    )
    await session.execute(
        f'ALTER TABLE {trail.schema}.{trail.table} ADD operation text, ADD "table" text, ADD after jsonb'
    )
    assert statements
    for statement in statements:
        # Each recipe of the page begins with an empty database.
        if "CREATE TABLE orders" in statement:
            await session.execute("DROP TABLE IF EXISTS orders")
        await session.execute(statement)
    await session.close()


def secrets_of(manifests: str) -> set[str]:
    """The secrets that pods need, with the keys they take of them."""
    return set(re.findall(r"secretKeyRef: \{name: \"([^\"]+)\"", manifests)) | set(
        re.findall(r"secretName: \"([^\"]+)\"", manifests)
    )


needs_helm = pytest.mark.skipif(
    not (HAS_LOCKED_HELM or shutil.which("helm")),
    reason="the lock has no helm for this platform, and no other is installed",
)


@needs_helm
async def test_every_command_of_the_page_on_kubernetes_works_or_names_what_the_chart_needs(
    shell: Shell,
) -> None:
    session = await asyncpg.connect(shell.server.dsn())
    await session.execute("CREATE DATABASE app")
    await session.close()
    values, slots, *sections = blocks("docs/deploy-kubernetes.md", "yaml")
    # The reader's own.
    (shell.folder / "ann.password").write_text("a password")
    (shell.folder / "values.yaml").write_text(values)
    rendered = ""
    for commands in blocks("docs/deploy-kubernetes.md", "sh"):
        # Without a cluster, what would be installed is rendered.
        rendered += shell.run(
            commands.replace("| less", "").replace("helm install", "helm template")
        )
    assert "kind: Deployment" in rendered

    made: dict[str, list[str]] = {}
    for words in shell.calls("kubectl"):
        assert "-n" not in words or words[words.index("-n") + 1] == "headrace"
        if "secret" in words:
            made[words[words.index("generic") + 1]] = [
                word for word in words if word.startswith("--from-")
            ]
    assert secrets_of(rendered) <= made.keys()
    files = {
        source.rpartition("=")[2]
        for sources in made.values()
        for source in sources
        if "--from-file" in source
    }
    # The certificates are the reader's own; the passwords are those that the page's first command
    # wrote.
    passwords = [
        (shell.folder / file).read_text() for file in files if not file.endswith("-ca.crt")
    ]
    assert [password for password in passwords if not re.fullmatch("h[0-9a-f]{40}", password)] == []
    assert len(set(passwords)) == len(passwords) == len(made) - 2
    session = await asyncpg.connect(shell.server.dsn("app"))
    roles = await session.fetch(
        "SELECT rolname::text AS name FROM pg_roles WHERE rolname LIKE 'headrace\\_%'"
    )
    await session.close()
    users = {
        source.rpartition("=")[2]
        for sources in made.values()
        for source in sources
        if "username=" in source
    }
    assert {user for user in users if user.startswith("headrace_")} <= {
        row["name"] for row in roles
    }
    shipped = (ROOT / "deploy/nats/nats.conf").read_text()
    assert [
        u for u in users if not u.startswith("headrace_") and f"{{user: {u}," not in shipped
    ] == []

    assert len(yaml.safe_load(slots)["slots"]) > 1
    for section in (slots, *sections):
        (shell.folder / "more.yaml").write_text(section)
        shell.run("helm template headrace deploy/helm/headrace -f values.yaml -f more.yaml")


@needs_helm
async def test_the_chart_is_rendered_as_the_readme_says(shell: Shell) -> None:
    (commands,) = [text for text in blocks("README.md", "sh") if "helm template" in text]
    assert "kind: Deployment" in shell.run(commands)
