"""The tables of a replay's target: their shape, and whether changes can follow another one."""

from __future__ import annotations

import re

from headrace.archive.metadata import TableInfo
from headrace.cli.archive.replay_range import ReplayError
from headrace.mirror import AlterTable, Column, Table

# The types that PostgreSQL widens without writing rows.
_VARYING = re.compile(r"(character varying|bit varying)(?:\((\d+)\))?")


def shape(info: TableInfo, called: str | None = None) -> Table:
    """The table in the target; `called`: its name there, if it is another one."""
    columns = tuple(Column(column.name, column.type_name) for column in info.columns)
    whole = tuple(column.name for column in info.columns)
    key = info.key if info.key != whole else ()
    return Table(info.schema, called or info.table, columns, key, info.key)


def altered(before: Table, wanted: Table, info: TableInfo) -> AlterTable:
    """The change of shape, if row changes can follow it."""
    there = {column.name for column in before.columns}
    new = [column for column in info.columns if column.name not in there]
    went = there - {column.name for column in info.columns}
    doubtful = [column.name for column in new if column.filled]
    # A renamed column looks like one that went and one that came, and keeps its values.
    if new and went:
        doubtful = [column.name for column in new]
    # ALTER TABLE … TYPE … USING may compute any value.
    types = {column.name: column.data_type for column in wanted.columns}
    doubtful += [
        column.name
        for column in before.columns
        if column.name in types and not _keeps_values(column.data_type, types[column.name])
    ]
    if doubtful:
        raise unknown(info, f"columns {', '.join(doubtful)} were added, renamed or retyped")
    return AlterTable(before, wanted)


def _keeps_values(before: str, after: str) -> bool:
    """Whether a change of type leaves every value as it is: none, or a longer varchar or varbit."""
    was = _VARYING.fullmatch(before)
    now = _VARYING.fullmatch(after)
    if was is None or now is None or was[1] != now[1]:
        return before == after
    return now[2] is None or (was[2] is not None and int(was[2]) <= int(now[2]))


def unknown(info: TableInfo, what: str) -> ReplayError:
    return ReplayError(
        f"{info.schema}.{info.table} may have got values that no change reports: {what}",
        remedy=(
            "Replay from a later position, into a target that a snapshot filled; or leave the "
            "table out."
        ),
    )
