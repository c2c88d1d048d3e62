"""The tables of a copy, checked against the catalogs of a MariaDB."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Sequence

from headrace.mirror.checking import TargetCheck, TargetShape, judged
from headrace.mirror.mariadb import TAKE_OVER_S, MariadbTarget
from headrace.mirror.mariadb_session import MariadbSession, explained
from headrace.mirror.mariadb_statements import MARKS, plain_name
from headrace.mirror.table import Table
from headrace.mirror.target import TargetError

NEEDED = ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "INDEX")
# Of everything, or of a database, whose name may be a pattern of LIKE.
_GRANT = re.compile(r"GRANT (.+?) ON (?:\*|`((?:[^`]|``)*)`)\.\* TO (\S+)")


async def check(target: MariadbTarget, tables: Sequence[Table]) -> TargetCheck:
    """Raises if the user can't have a mirror there; refuses single tables in the result."""
    return await asyncio.to_thread(_check, target, tables)


def _check(target: MariadbTarget, tables: Sequence[Table]) -> TargetCheck:
    with (
        explained(),
        contextlib.closing(MariadbSession(target.url, target.types, TAKE_OVER_S)) as session,
    ):
        ((version, user, read_only),) = session.ask(
            "SELECT version(), current_user(), @@global.read_only"
        )
        # Only the server's administrators could write.
        if str(read_only) == "1":
            raise TargetError(
                "the mirror's MariaDB is read-only", remedy="Name the primary server in `to`."
            )
        _check_rights(session, user)
        marks: dict[str, str] = {}
        if session.exists(MARKS):
            marks = session.marks()
        statements = session.statements

        def shape(table: Table) -> TargetShape:
            statements.check(table)
            columns = [
                f"{column.name} {statements.kind(table, column)}"
                for column in target.types.columns(table)
            ]
            return TargetShape(columns, target.types.limits(table))

        outcomes = judged(tables, marks, lambda table: session.exists(plain_name(table)), shape)
        return TargetCheck(f"{version} accepts the login of {user}", outcomes)


def _check_rights(session: MariadbSession, user: str) -> None:
    ((database,),) = session.ask("SELECT database()")
    lines = [_GRANT.match(line) for (line,) in session.ask("SHOW GRANTS")]
    grants = [found for found in lines if found is not None]
    granted: set[str] = set()
    # A user's roles have grants, too.
    for grantee in {found[3] for found in grants}:
        of_one = [found for found in grants if found[3] == grantee]
        granted |= _rights(next((found for found in of_one if found[2] is None), None))
        here = [one for one in of_one if one[2] is not None and _covers(session, one, database)]
        # Of several grants for databases only the one with the most specific name applies.
        granted |= _rights(max(here, key=_specific, default=None))
    lacks = [one for one in NEEDED if one not in granted]
    name, _, host = user.rpartition("@")
    if lacks and "ALL PRIVILEGES" not in granted:
        raise TargetError(
            f"the user {user} lacks {', '.join(lacks)} on {database}",
            remedy=f"GRANT {', '.join(NEEDED)} ON `{database}`.* TO '{name}'@'{host}'",
        )


def _rights(found: re.Match[str] | None) -> set[str]:
    if found is None:
        return set()
    return {one.strip() for one in found[1].split(",")}


def _covers(session: MariadbSession, found: re.Match[str], database: str) -> bool:
    return session.is_like(database, found[2].replace("``", "`"))


def _specific(found: re.Match[str]) -> int:
    """The length of a name before its first wildcard."""
    wildcard = re.search(r"(?<!\\)[%_]", found[2])
    if wildcard is None:
        return len(found[2]) + 1
    return wildcard.start()
