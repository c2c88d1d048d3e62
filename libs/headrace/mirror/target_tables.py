"""Plans the tables of a copy, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.mirror.rules import CopyRules, Place, name_in
from headrace.mirror.table import Table
from headrace.mirror.target import SamePlaceError


def planned(scheme: str, tables: Iterable[Table], rules: CopyRules) -> list[Table]:
    """The tables as a target of this kind would have them; raises if it can't."""
    found = []
    taken: dict[str, Place] = {}
    for table in tables:
        made = table.ruled(rules.of(table.schema, table.name))
        called = name_in(scheme, made.place)
        source = (table.schema, table.name)
        # The target itself would only notice it at the second one's first copy.
        if called in taken:
            raise SamePlaceError(taken[called], source, made.place)
        taken[called] = source
        found.append(made)
    return found
