"""Reads older cuts, as long as they are kept: the tables that a statement needs are loaded for it.

A table is shown if it has the same columns now: only these are defined in PostgreSQL. It has its
name of today, under which the definition is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

import duckdb

from headrace.errors import HeadraceError
from headrace.lake.catalog import Cut
from headrace.lake.column_types import ITEM_EXACT
from headrace.lake.files import LakeFiles
from headrace.lsn import parse_lsn
from headrace.sql.cut_reading import CutTable, CutTables
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.lake_copy_tables import FedTable, TableFeed
from headrace.sql.pins import PinnedCut, Shown
from headrace.sql.relations import LakeRelation

_LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")


class NoSuchCutError(HeadraceError):
    """No kept cut is the one that is asked for."""

    # invalid_parameter_value
    sqlstate = "22023"
    remedy = (
        "Use a cut's number, an LSN or a timestamp with its zone. `headrace lake cuts` lists the "
        "cuts that are kept; HEADRACE_LAKE_KEEP_CUTS and HEADRACE_LAKE_KEEP_S say how many."
    )


def find_cut(cuts: Sequence[Cut], wanted: str) -> Cut:
    """The newest kept cut with a number, or that is not after an LSN or a time."""
    moment = wanted.strip()
    if moment.isdecimal():
        fits: Callable[[Cut], bool] = lambda cut: cut.number == int(moment)  # noqa: E731
    elif _LSN.fullmatch(moment):
        fits = lambda cut: cut.lsn <= parse_lsn(moment)  # noqa: E731
    else:
        time_us = _microseconds(moment)
        fits = lambda cut: (cut.commit_us or cut.made_us) <= time_us  # noqa: E731
    # The newest that fits: a reader of an LSN wants all that it may see.
    for cut in sorted(cuts, key=lambda each: -each.number):
        if fits(cut):
            return cut
    raise NoSuchCutError(f"the lake keeps no cut {wanted}")


def _microseconds(moment: str) -> int:
    try:
        time = datetime.fromisoformat(moment)
    except ValueError:
        raise NoSuchCutError(f"{moment} is no cut, LSN or timestamp") from None
    # The server's zone would be a guess.
    if time.tzinfo is None:
        raise NoSuchCutError(f"{moment} has no time zone")
    since = time.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds


class OlderCut(PinnedCut):
    """An older cut for one reader; `prepare` loads tables."""

    def __init__(
        self,
        files: LakeFiles,
        cut: CutTables,
        now: Shown,
        identities: Mapping[int, str],
        cursor: duckdb.DuckDBPyConnection,
    ) -> None:
        """`identities` are the Iceberg tables of the relations that the copy shows `now`."""
        tables = {table.identity: table for table in cut.tables.values()}
        self._tables: dict[int, CutTable] = {}
        relations: dict[int, LakeRelation] = {}
        names = (f"o{number}" for number in count(1))
        for relid, relation in now.relations.items():
            table = tables.get(identities[relid])
            if table is not None and _has_columns_of_today(table):
                self._tables[relid] = table
                relations[relid] = replace(relation, copy=next(names))
        super().__init__(Shown(cut.cut, relations), -1, [cursor], lambda _: None)
        self._feed = TableFeed(files, cursor, "TEMP TABLE")
        self._loaded: dict[int, FedTable] = {}

    def prepare(self, relids: Iterable[int]) -> None:
        """Load tables that are not loaded yet."""
        with self.using():
            for relid in sorted(set(relids) - self._loaded.keys()):
                name = self.relations[relid].copy
                state = self._feed.feed(None, self._tables[relid], name)
                # The columns of an older cut are not known to the translation, which would trust
                # all values.
                if state.unheld:
                    table = state.table.name
                    raise NotProvenEqualError(f"a value of {table} that DuckDB lacks, in this cut")
                self._loaded[relid] = state

    def recover(self) -> bool:
        """Continue: no transaction ends with an error, because the tables don't change."""
        return not self.closed

    def spare(self) -> bool:
        """Always so."""
        return True


def _has_columns_of_today(table: CutTable) -> bool:
    fields = {field.field_id for field in table.schema.fields if field.name != ITEM_EXACT}
    return fields == {column.field_id for column in table.table.columns}
