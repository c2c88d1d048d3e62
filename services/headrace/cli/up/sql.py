"""The user of the SQL server of `headrace up --sql`, and its address for clients."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from headrace.cli.sql import users
from headrace.embedded.ports import LOOPBACK
from headrace.embedded.postgres import kept_password
from headrace.settings import SqlSettings

USER = "reader"
_ALL_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104  # compared, and never listened on


def make_sql_user(settings: SqlSettings, folder: Path) -> None:
    """Create the user, who may read all tables, or give it its password again."""
    # At every start, because the folder of the SQL server may be new.
    users.add(settings, USER, _password(folder), all_tables=True)


def sql_environment(settings: SqlSettings, folder: Path) -> dict[str, str]:
    """Variables with which a client connects."""
    secret = quote(_password(folder), safe="")
    host = settings.host
    # The server listens everywhere, and a client needs one address.
    if host in _ALL_ADDRESSES:
        host = LOOPBACK
    database = quote(settings.database, safe="")
    return {
        "HEADRACE_SQL_FOLDER": str(Path(settings.folder).absolute()),
        "HEADRACE_SQL_PORT": str(settings.port),
        "SQL_URL": f"postgresql://{USER}:{secret}@{host}:{settings.port}/{database}",
    }


def _password(folder: Path) -> str:
    return kept_password(folder / "sql-password")
