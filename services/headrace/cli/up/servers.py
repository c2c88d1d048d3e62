"""The servers that `headrace up` uses: those the environment names, else embedded ones under
`.headrace/`.

Promises: servers that the environment names are never changed beyond what the suite needs; an
embedded server keeps its data and, if it is free, its port from run to run; passwords stay in files
that only the user can read.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from headrace.embedded.nats import GROUP_MESSAGES_MAX, EmbeddedNats
from headrace.embedded.postgres import SUPERUSER, EmbeddedPostgres, kept_password
from headrace.embedded.postgres_install import postgres_binaries
from headrace.embedded.server import EmbeddedServer
from headrace.jetstream.connection import shown
from headrace.postgres.connection import where
from headrace.settings import NatsSettings, PostgresSettings

DATABASE = "headrace"
# A slot that is far behind fills the disk, or is invalidated. This server runs only while its
# reader does, so a slot falls this far behind only if the suite stalls for all of that time.
_POSTGRES_SETTINGS = {"max_slot_wal_keep_size": "32GB"}
POSTGRES_NAMED_BY = ("PG_HOST", "PGHOST", "PGHOSTADDR", "PGSERVICE")
NATS_NAMED_BY = ("NATS_URL", "NATS_HOST")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server as shown to the user."""

    name: str
    address: str
    embedded: EmbeddedServer | None

    @property
    def pid(self) -> int | None:
        if self.embedded and self.embedded.running:
            return self.embedded.pid
        return None


@dataclass(slots=True)
class Servers:
    """Both servers of a run; starts and stops the embedded ones."""

    folder: Path
    environ: Mapping[str, str]
    postgres: EmbeddedPostgres | None
    nats: EmbeddedNats | None

    @classmethod
    def choose(
        cls, folder: Path, environ: Mapping[str, str], *, pg_port: int, nats_port: int
    ) -> Servers:
        """Decide by the environment which server is embedded; starts nothing."""
        postgres = None
        nats = None
        if not any(environ.get(name) for name in POSTGRES_NAMED_BY):
            password = kept_password(folder / "postgres.password")
            postgres = EmbeddedPostgres(
                folder / "postgres", 18, pg_port, _POSTGRES_SETTINGS, password=password
            )
        if not any(environ.get(name) for name in NATS_NAMED_BY):
            nats = EmbeddedNats(folder / "nats", nats_port)
        return cls(folder, environ, postgres, nats)

    async def start(self, tell: Callable[[str], None]) -> None:
        """Start the embedded servers."""
        for server in self.embedded:
            await server.start()
            tell(f"{server.kind} listens on 127.0.0.1:{server.port}")
        if self.postgres is not None:
            self._write_secret(
                "pgpass", f"127.0.0.1:{self.postgres.port}:*:{SUPERUSER}:{self._password()}\n"
            )

    @property
    def embedded(self) -> list[EmbeddedServer]:
        """The embedded servers, in starting order; they stop in reverse order."""
        return [server for server in (self.postgres, self.nats) if server is not None]

    def environment(self) -> dict[str, str]:
        """Variables that point a service, or a client in another terminal, to these servers."""
        named: dict[str, str] = {}
        if self.postgres is not None:
            named |= {
                "PG_HOST": "127.0.0.1",
                "PG_PORT": str(self.postgres.port),
                "PG_DB": DATABASE,
                "POSTGRES_BRIDGE_USER": SUPERUSER,
                "POSTGRES_BRIDGE_PASSWORD_FILE": str(self.folder / "postgres.password"),
            }
        if self.nats is not None:
            named["NATS_URL"] = self.nats.url
            # The embedded server is configured for larger groups than a server by default.
            if "HEADRACE_ATOMIC_MESSAGES_MAX" not in self.environ:
                named["HEADRACE_ATOMIC_MESSAGES_MAX"] = str(GROUP_MESSAGES_MAX)
        return named

    def inherited(self) -> dict[str, str]:
        """The environment without variables that would point to other servers."""
        gone: set[str] = set()
        if self.postgres is not None:
            # PGSSLMODE=require, for example, would fail: the embedded server has no TLS.
            gone |= {name for name in self.environ if name.startswith(("PG", "POSTGRES_BRIDGE_"))}
        if self.nats is not None:
            gone |= {name for name in self.environ if name.startswith("NATS_")}
        return {name: value for name, value in self.environ.items() if name not in gone}

    def places(self, postgres: PostgresSettings, nats: NatsSettings) -> list[ServerAddress]:
        """Both servers, for the table."""
        return [
            ServerAddress(
                "PostgreSQL",
                f"{where(postgres)}/{postgres.database or ''}".rstrip("/"),
                self.postgres,
            ),
            ServerAddress("NATS", shown(nats), self.nats),
        ]

    def psql(self) -> str:
        """The command that connects to the database."""
        if self.postgres is None:
            return "psql, with the connection settings you gave"
        # The embedded server contains psql, if the machine has no other.
        if shutil.which("psql"):
            program = "psql"
        else:
            program = shlex.quote(str(postgres_binaries(18, None) / "psql"))
        passfile = quote(str(self.folder / "pgpass"), safe="/")
        server = f"{SUPERUSER}@127.0.0.1:{self.postgres.port}"
        return f"{program} 'postgresql://{server}/{DATABASE}?passfile={passfile}'"

    def write_environment(self, settings: dict[str, str], name: str = "env") -> Path:
        """Write the variables to a file that another terminal can source."""
        given = self.environment() | self._psqls() | settings
        lines = [f"export {variable}={_shell_quoted(value)}\n" for variable, value in given.items()]
        # So that `headrace` is found there by its name, and the server's own psql where there is no
        # other.
        if self.postgres is None:
            last = ""
        else:
            last = f":{_shell_quoted(str(postgres_binaries(18, None)))}"
        lines.append(
            f'export PATH={_shell_quoted(str(Path(sys.executable).parent))}:"$PATH"{last}\n'
        )
        return self._write_secret(name, "".join(lines))

    def _psqls(self) -> dict[str, str]:
        """Variables that let psql, pg_dump and others connect to the embedded server without an
        argument.
        """
        if self.postgres is None:
            return {}
        return {
            "PGHOST": "127.0.0.1",
            "PGPORT": str(self.postgres.port),
            "PGUSER": SUPERUSER,
            "PGDATABASE": DATABASE,
            "PGPASSFILE": str(self.folder / "pgpass"),
        }

    def _password(self) -> str:
        return kept_password(self.folder / "postgres.password")

    def _write_secret(self, name: str, text: str) -> Path:
        path = self.folder / name
        # With its mode from the start: before a later chmod, others could read it.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        return path


def _shell_quoted(value: str) -> str:
    return "'" + value.replace("'", "'\\''") + "'"
