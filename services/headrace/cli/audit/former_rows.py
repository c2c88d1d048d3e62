"""Rows as they were before a change: as PostgreSQL sent them, or as earlier changes of the trail
left them.

Promises: what the trail can't prove is refused, never guessed. A value from an earlier change
counts only if the trail has everything that happened to the table's rows since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg

from headrace.audit.history import (
    columns_of,
    exact_of,
    gap_between,
    is_unsure,
    key_columns,
    known_of,
    place_of,
    row_at,
    written_before,
)
from headrace.audit.revert import IrreversibleError, RowImage, SourceTable, parsed
from headrace.audit.rows import key_text
from headrace.audit.table import AuditTable
from headrace.cli.audit.relations import is_published_in_part
from headrace.cli.audit.source_tables import SourceTables


@dataclass(frozen=True, slots=True)
class FormerRows:
    """Reads them from the trail; `tables` are the source's as they are now."""

    trail: asyncpg.Connection
    audit: AuditTable
    tables: SourceTables

    async def before(self, change: Mapping[str, Any]) -> RowImage:
        """The row before a change: as PostgreSQL sent it, or as earlier changes left it."""
        was = image(change, "before")
        after = parsed(change["after"])
        before = was.values
        if change["operation"] == "UPDATE":
            # Then the table has REPLICA IDENTITY FULL.
            whole = set(before) >= set(after) | set(change["unchanged"] or ())
        else:
            whole = await self._is_whole(change, set(before))
        if whole and before:
            return was
        names = (change["schema"], change["table"])
        key = await key_columns(self.trail, self.audit, *names, change["source"])
        old_key = change["primary_key"]
        if change["operation"] == "UPDATE" and before:
            # The key changed: the earlier row is found under its old key.
            old_key = key_text({**json.loads(change["after"]), **json.loads(change["before"])}, key)
        place = place_of(change)
        database = change["database"]
        earlier = await row_at(
            self.trail, self.audit, names, old_key or "", place, parsed, database
        )
        if earlier.values is None or earlier.unknown or earlier.oldest is None:
            if earlier.unknown:
                unknown = f": {', '.join(earlier.unknown)}"
            else:
                unknown = ""
            raise IrreversibleError(
                f"the former values of a row of {change['table']} are not known{unknown}"
            )
        await self._require_known(change, earlier.oldest)
        return RowImage(earlier.values, earlier.exact, earlier.unsure)

    async def _is_whole(self, change: Mapping[str, Any], sent: set[str]) -> bool:
        """Whether PostgreSQL sent all of a deleted row, as far as its columns are there still."""
        names = (change["database"], change["schema"], change["table"])
        columns = (await self.tables.table(*names[1:])).columns
        last = await written_before(self.trail, self.audit, names, change)
        # A column that any row in the trail has is one that the trail receives.
        latest = last or await written_before(self.trail, self.audit, names)
        known = columns_of(latest) or set(columns)
        if not sent >= known & set(columns):
            return False
        key = await key_columns(self.trail, self.audit, *names[1:], change["source"])
        others = {one.name for one in columns.values() if not one.generated} - sent
        if last is not None and others and sent.issubset(key):
            # The key is a whole row only if the table had no other column by then.
            await self._require_known(change, last)
        return True

    async def _require_known(self, change: Mapping[str, Any], oldest: Mapping[str, Any]) -> None:
        """From an earlier change on the trail must have all that happened to the table's rows."""
        names = (change["schema"], change["table"])
        # A lost change of the row could have made it another.
        why = await gap_between(self.trail, self.audit, oldest, change)
        if why is None and await is_published_in_part(self.tables.connection, *names):
            why = "its publication leaves out updates, deletes or TRUNCATEs"
        if why is not None:
            raise IrreversibleError(
                f"the former values of a row of {change['table']} are not known: changes of it "
                f"may be missing ({why})"
            )
        # With --apply the table is locked by now, so no rewrite can follow this comparison
        # (docs/adr/0028).
        relation_id, files = await self.tables.files(names)
        known = await known_of(self.trail, self.audit, *names, change["source"] or "")
        if (
            known is not None
            and known.has(oldest, change["source"])
            and known.relation_id == relation_id
            # Partitions may have come since; a file that is gone means a rewrite.
            and files.issuperset(known.files.split(","))
        ):
            return
        raise IrreversibleError(
            f"what a row of {change['table']} was before is not known: since the change "
            f"{oldest['id']}, which wrote it last, rows may have changed without the trail: the "
            "table was swapped, rewritten or given a column, was not audited for a while, or an "
            "earlier version wrote the trail"
        )

    async def require_all_columns(
        self,
        change: Mapping[str, Any],
        table: SourceTable,
        side: RowImage,
        unchanged: Sequence[str],
    ) -> None:
        """Columns that the trail lacks: only columns that were added later are no part of the
        change.
        """
        absent = [
            one
            for one in table.columns.values()
            if one.name not in side.values and one.name not in unchanged
        ]
        absent = [one for one in absent if not one.generated]
        if not absent:
            return
        # Existing columns have lower numbers; one that is in the trail by now is no longer
        # excluded, if it ever was.
        newest = max((table.columns[name].number for name in side.values), default=0)
        names = (change["database"], table.schema, table.name)
        delivered = columns_of(await written_before(self.trail, self.audit, names))
        then = columns_of(await written_before(self.trail, self.audit, names, change))
        hidden = [
            one.name
            for one in absent
            if one.number < newest or one.name in then or one.name not in delivered
        ]
        if hidden:
            raise IrreversibleError(
                f"the trail does not have these columns of {table.name}: {', '.join(hidden)}",
                remedy=(
                    "HEADRACE_EXCLUDE_COLUMNS or the publication excludes them, or they "
                    "were added after the last change in the trail: undo it manually."
                ),
            )


def image(change: Mapping[str, Any], side: str) -> RowImage:
    """A change's row, `before` or `after`."""
    values = parsed(change[side])
    return RowImage(values, exact_of(change, side), values if is_unsure(change) else ())
