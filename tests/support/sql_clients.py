"""Clients of PostgreSQL as programs: each prints its questions and the answers as JSON.

They are installed once into the user's cache, by their own package managers, from locks.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from headrace.embedded.java import find_java
from headrace.testing.fetched import cached, check_pins, fetch, pins
from tests.support.shop_lake import Shop

CLIENTS = Path(__file__).parents[1] / "integration/sql_server/clients"
RUN_TIMEOUT_S = 120
PGJDBC = "42.7.4"


def _installed(name: str, files: Sequence[Path], make: Callable[[Path], None]) -> Path:
    """A folder of the cache that depends on the content of these files, which are copied there."""

    def copied(folder: Path) -> None:
        for file in files:
            shutil.copy(file, folder)
        make(folder)

    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return cached(f"sql-client-{name}-{digest[:12]}", copied)


def _needs(program: str, why: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed, which {why}")


def python_client(script: str) -> list[str]:
    """A script for the tests' own Python."""
    return [sys.executable, "-W", "ignore", str(CLIENTS / "python" / script)]


def _python_packages(name: str, requirements: Path) -> dict[str, str]:
    """Packages that only a client needs, in a folder outside the tests' environment."""

    def install(folder: Path) -> None:
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
        fetch([*pip, "--target", ".", "-r", requirements.name], folder)

    return {"PYTHONPATH": str(_installed(name, [requirements], install))}


def greenlet() -> dict[str, str]:
    """SQLAlchemy's asynchronous engines need it, and nothing else does."""
    return _python_packages("greenlet", CLIENTS / "python" / "requirements.txt")


def dbt(folder: Path) -> dict[str, str]:
    """dbt's packages; its project is copied to this folder, where it writes its results."""
    shutil.copytree(CLIENTS / "dbt", folder, dirs_exist_ok=True)
    project = {
        "DBT_PROJECT_DIR": str(folder),
        "DBT_PROFILES_DIR": str(folder),
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
    }
    return project | _python_packages("dbt", CLIENTS / "dbt" / "requirements.txt")


def node_client(script: str, folder: Path) -> list[str]:
    """A script for Node.js, copied to this folder, which gets its packages."""
    _needs("npm", "installs node-postgres")
    _needs("node", "runs node-postgres")
    files = [CLIENTS / "node" / name for name in ("package.json", "package-lock.json")]

    def install(target: Path) -> None:
        fetch(["npm", "ci", "--no-audit", "--no-fund", "--loglevel", "error"], target)

    packages = _installed("node", files, install)
    (folder / "node_modules").symlink_to(packages / "node_modules")
    shutil.copy(CLIENTS / "node" / script, folder)
    return ["node", str(folder / script)]


def prisma(folder: Path) -> None:
    """Prisma's schema and configuration in this folder, with its packages."""
    _needs("npm", "installs Prisma")
    _needs("node", "runs Prisma")
    files = [CLIENTS / "prisma" / name for name in ("package.json", "package-lock.json")]

    def install(target: Path) -> None:
        # A script of its packages would fetch native engines.
        npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"]
        fetch(npm, target)

    packages = _installed("prisma", files, install)
    (folder / "node_modules").symlink_to(packages / "node_modules")
    for name in ("package.json", "prisma.config.mjs", "schema.prisma"):
        shutil.copy(CLIENTS / "prisma" / name, folder)


def java_client(script: str) -> list[str]:
    """A Java source with pgjdbc."""
    java = find_java()
    if java is None:
        pytest.skip("Java 17 is not installed, which runs pgjdbc")
    _needs("mvn", "fetches pgjdbc")
    pinned = CLIENTS / "java" / "pgjdbc.sha256"

    def install(folder: Path) -> None:
        (folder / pinned.name).unlink()
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0:copy"
        artifact = f"-Dartifact=org.postgresql:postgresql:{PGJDBC}"
        fetch(["mvn", "-q", "-B", goal, artifact, "-DoutputDirectory=."], folder)
        check_pins(folder, pins(pinned))

    jars = _installed("pgjdbc", [pinned], install)
    return [str(java.java), "-cp", f"{jars}/*", str(CLIENTS / "java" / script)]


def go_client() -> list[str]:
    """The program with pgx, which is built once."""
    _needs("go", "builds the client with pgx")
    files = [CLIENTS / "go" / name for name in ("main.go", "go.mod", "go.sum")]
    built = _installed("pgx", files, lambda folder: fetch(["go", "build", "-o", "client"], folder))
    return [str(built / "client")]


def output(shop: Shop, side: str, command: Sequence[str], more: Mapping[str, str]) -> str:
    """The output of a program that asks one side."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    done = subprocess.run(
        command,
        env={**kept, **shop.address(shop.ports[side]), **more},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{side}: {done.stdout[-1000:]} {done.stderr[-3000:]}"
    return done.stdout


def compare(shop: Shop, command: Sequence[str], least: int, **more: str) -> dict[str, object]:
    """Ask both sides the same: at least so many questions, all with equal answers.

    Returns the lake's answers. A question named "a write" is refused by both, each for its reason.
    """
    found, expected = (json.loads(output(shop, side, command, more)) for side in shop.ports)
    answers: dict[str, object] = dict(found)
    for refused in (found, expected):
        assert "failed" in str(refused.pop("a write", "failed"))
    different = {
        question: (str(found.get(question))[:500], str(answer)[:500])
        for question, answer in expected.items()
        if found.get(question) != answer
    }
    assert not different
    assert found.keys() == expected.keys()
    assert len(found) >= least
    return answers
