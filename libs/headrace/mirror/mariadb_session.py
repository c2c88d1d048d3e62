"""A connection to MariaDB or MySQL: strict, in UTC, with the mirror's marks."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql
from pymysql.constants import CLIENT
from pymysql.converters import encoders
from pymysql.cursors import SSCursor

from headrace.errors import SettingError
from headrace.mirror import target
from headrace.mirror.mariadb_statements import (
    JOURNAL,
    MARKS,
    RowStatement,
    Statements,
    literal,
    quoted,
    table_name,
)
from headrace.mirror.native_types import NativeTypes
from headrace.mirror.table import Table

CONNECT_TIMEOUT_S = 10
READ_ROWS = 5000
_PORT = 3306
# Every value that does not fit is an error, as is any warning about a change of rows.
_SQL_MODE = (
    "STRICT_ALL_TABLES,STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
)
_DUPLICATE = 1062
# Lost or refused connections, lock waits, deadlocks, a shutdown, a read-only or full server.
_AWAY = frozenset(
    {1040, 1053, 1077, 1079, 1129, 1130, 1158, 1159, 1160, 1161, 1205, 1213, 1290, 1836, 1021, 1114}
    | {2002, 2003, 2006, 2013, 2055}
)


@dataclass(frozen=True, slots=True)
class MariadbUrl:
    """The address of a database, with a user and a password."""

    host: str
    port: int
    user: str
    password: str
    database: str
    ca: str = ""

    @classmethod
    def parsed(cls, url: str, password: str = "", ca: str = "") -> MariadbUrl:
        """From `mariadb://user@host:port/database`."""
        parts = urlsplit(url)
        database = unquote(parts.path.removeprefix("/"))
        if not parts.hostname or not database or "/" in database:
            raise SettingError(
                "the address of MariaDB names no server or no database",
                remedy="Write mariadb://user@host:3306/database.",
            )
        if ca and not Path(ca).exists():
            raise SettingError(f"the file {ca} (option ca) does not exist")
        secret = password or unquote(parts.password or "") or os.environ.get("MYSQL_PWD", "")
        return cls(
            parts.hostname, parts.port or _PORT, unquote(parts.username or ""), secret, database, ca
        )


class MariadbSession:
    def __init__(self, url: MariadbUrl, types: NativeTypes, wait_s: int) -> None:
        self._wait_s = wait_s
        tls: dict[str, Any] = {}
        if url.ca:
            tls["ssl"] = {"ca": url.ca}
        self._connection = pymysql.connect(
            host=url.host,
            port=url.port,
            user=url.user,
            password=url.password,
            database=url.database,
            charset="utf8mb4",
            autocommit=False,
            connect_timeout=CONNECT_TIMEOUT_S,
            # How many rows matched, not how many are different now.
            client_flag=CLIENT.FOUND_ROWS,
            # Values as the server's text.
            conv=dict(encoders),
            # A server could otherwise ask for any file of this machine.
            local_infile=False,
            **tls,
        )
        version = str(self._connection.get_server_info())
        # The two servers have no name in common for a collation that heeds blanks at the end.
        collation = "utf8mb4_0900_bin"
        if "MariaDB" in version:
            collation = "utf8mb4_nopad_bin"
        self.statements = Statements(types, collation)
        self._collation = collation
        self._packet_bytes = 0
        for name, value in (
            ("sql_mode", literal(_SQL_MODE)),
            ("time_zone", "'+00:00'"),
            ("innodb_lock_wait_timeout", str(wait_s)),
            ("lock_wait_timeout", str(wait_s)),
        ):
            self.ask(f"SET SESSION {name} = {value}")
        # Only this process writes, so the locks on gaps would only hold up readers' statements.
        self.ask("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        # The server cuts the connection at a longer statement, which would look like an outage.
        ((packet,),) = self.ask("SELECT @@max_allowed_packet")
        self._packet_bytes = int(packet)
        self._connection.commit()
        self.in_transaction = False

    def ask(self, sql: str) -> Sequence[Any]:
        """The rows of a statement."""
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            found: Sequence[Any] = cursor.fetchall()
            return found

    def run(self, statement: RowStatement) -> None:
        """Change rows; raises unless exactly the expected number of rows matched, without a
        warning.
        """
        data = statement.sql.encode()
        if len(data) + 1024 > self._packet_bytes:
            raise target.TargetError(
                f"{statement.table.schema}.{statement.table.name} has a row that is longer than "
                f"the server's max_allowed_packet ({self._packet_bytes} bytes)",
                remedy="Raise max_allowed_packet on the server, then restart the sink.",
            )
        self.in_transaction = True
        try:
            with self._connection.cursor() as cursor:
                count = cursor.execute(data)
                warned = cursor.warning_count
        except pymysql.err.IntegrityError as error:
            if error.args[0] == _DUPLICATE:
                # The source has this key once: the target has a row that it should not have.
                raise target.RowMissingError(statement.table, target.NOT_ONE) from error
            raise
        # Strict mode lets some conversions pass with a note, such as digits behind a scale.
        if warned:
            ((_, _, said), *_) = self.ask("SHOW WARNINGS")
            raise target.TargetError(
                f"{statement.table.schema}.{statement.table.name}: the server would change a "
                f"value: {said}",
                remedy='Store the column as text: options = {text = ["table.column"]}.',
            )
        if statement.expected is not None and count != statement.expected:
            raise target.RowMissingError(statement.table, target.NOT_ONE)

    # State.

    def create_state(self) -> None:
        """Create the tables of marks and journal."""
        for name, columns in (
            (MARKS, "name VARBINARY(767) PRIMARY KEY, value LONGTEXT NOT NULL"),
            (JOURNAL, "number INT PRIMARY KEY, entry LONGTEXT NOT NULL"),
        ):
            if not self.exists(name):
                self.ask(
                    f"CREATE TABLE IF NOT EXISTS {name} ({columns}) ENGINE=InnoDB "
                    f"CHARACTER SET utf8mb4 COLLATE {self._collation}"
                )

    def exists(self, name: str) -> bool:
        """Whether the database has a table or view of this name."""
        found = self.ask(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = database() AND "
            f"table_name = {literal(name)}"
        )
        return bool(found)

    def is_like(self, text: str, pattern: str) -> bool:
        """Whether a name fits the pattern of a grant."""
        ((found,),) = self.ask(f"SELECT {literal(text)} LIKE {literal(pattern)}")
        return str(found) == "1"

    def comment(self, name: str) -> str:
        """The comment of a table."""
        found = self.ask(
            "SELECT table_comment FROM information_schema.tables WHERE table_schema = database() "
            f"AND table_name = {literal(name)}"
        )
        if not found:
            return ""
        return str(found[0][0])

    def marks(self) -> dict[str, str]:
        """All marks, as this transaction sees them."""
        rows = self.ask(f"SELECT name, value FROM {MARKS}")
        return {_text(name): _text(value) for name, value in rows}

    def locked_mark(self, name: str) -> str | None:
        """A mark, which nobody changes until this transaction ends."""
        self.in_transaction = True
        found = self.ask(f"SELECT value FROM {MARKS} WHERE name = {literal(name)} FOR UPDATE")
        if not found:
            return None
        return _text(found[0][0])

    def keep(self, marks: Mapping[str, str | None]) -> None:
        """Store these marks with the transaction; remove those that are None."""
        self.in_transaction = True
        for name, value in marks.items():
            if value is None:
                self.ask(f"DELETE FROM {MARKS} WHERE name = {literal(name)}")
            else:
                self.ask(f"REPLACE INTO {MARKS} VALUES ({literal(name)}, {literal(value)})")

    def commit(self) -> None:
        self._connection.commit()
        self.in_transaction = False

    def roll_back(self) -> None:
        self._connection.rollback()
        self.in_transaction = False

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock that only one process of this database has; a lost connection ends it."""
        ((database,),) = self.ask("SELECT database()")
        name = f"headrace:{hashlib.sha256(str(database).encode()).hexdigest()[:40]}"
        ((got,),) = self.ask(f"SELECT GET_LOCK({literal(name)}, {self._wait_s})")
        if str(got) != "1":
            raise target.TargetAwayError(
                "the mirror's MariaDB: another mirror is changing its tables"
            )
        try:
            yield
        finally:
            with contextlib.suppress(pymysql.Error):
                self.ask(f"SELECT RELEASE_LOCK({literal(name)})")

    # Reading.

    def begin_reading(self) -> None:
        """Begin a transaction that sees one moment."""
        self.ask("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self.ask("START TRANSACTION WITH CONSISTENT SNAPSHOT")

    def streamed(
        self, table: Table, names: Sequence[str], where: str = "true"
    ) -> Iterator[Sequence[Any]]:
        """All rows that fulfill a condition, some at a time."""
        listed = ", ".join(map(quoted, names))
        cursor = self._connection.cursor(SSCursor)
        cursor.execute(f"SELECT {listed} FROM {table_name(table)} WHERE {where}")
        # The client returns a list, and at the end a tuple.
        return itertools.takewhile(len, iter(lambda: cursor.fetchmany(READ_ROWS), None))

    def close(self) -> None:
        # The polite way would read the rest of a result first.
        self._connection._force_close()  # noqa: SLF001


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return str(value)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Raise the mirror's errors instead of the client's."""
    try:
        yield
    except pymysql.Error as error:
        # Errors of the client itself may lack the number or the text.
        code, said = (*error.args, 0, "")[:2]
        if code in _AWAY or isinstance(error, pymysql.err.InterfaceError):
            raise target.TargetAwayError(f"the mirror's MariaDB: {said or error}") from error
        raise target.TargetError(
            f"the mirror's MariaDB: {said or error}",
            remedy="Check the user's rights there, and which other programs use its tables.",
        ) from error
