"""Applies archived changes of one table to its draft."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headrace.lake.column_types import ITEM_EXACT
from headrace.lake.columns import Ints
from headrace.lake.draft import Found, KeyColumns, TableDraft
from headrace.lake.errors import LakeError
from headrace.lake.fold import NetChanges, fold
from headrace.lake.locate import Needles, entry_of
from headrace.lake.rows import JsonRows
from headrace.lake.tables import LakeTable


class LakeRowMissingError(LakeError):
    """A row's unchanged value is nowhere in the lake: the table has to be copied again."""


def apply(draft: TableDraft, table: LakeTable, batch: pa.Table) -> None:
    """Apply a table's archived rows, which all have the table's current shape, in order."""
    net = fold(batch, table.unique_key)
    # First: the rows of this batch came after it.
    if net.truncated:
        draft.truncate()
    if net.empty:
        return
    if net.keys:
        found, codes = _find(draft, table, net)
    rows = JsonRows(table.infos).read(net.rows, net.exact)
    if net.borrowed:
        # Before the delete: the rows that lend their values are about to go.
        rows = _with_borrowed(draft, table, net, rows, found, codes)
    if net.keys:
        draft.delete(found)
    draft.append(rows)


def _find(draft: TableDraft, table: LakeTable, net: NetChanges) -> tuple[Found, Ints]:
    """The lake's rows with the keys, and each key's number."""
    whole_rows = net.counts is not None
    names = [info.name for info in table.infos] if whole_rows else list(table.key)
    infos = [next(info for info in table.infos if info.name == name) for name in names]
    keys = JsonRows(infos).read(pa.array(net.keys, pa.string()), net.exact_keys)
    ids = tuple(table.field_id(name) for name in names)
    if whole_rows:
        # Rows that are NULL in the columns differ in the texts of `_headrace_exact`.
        needles = Needles(keys)
        counts = np.zeros(len(net.keys), np.int64)
        # Equal rows share a number, so their counts are added.
        np.add.at(counts, needles.codes, np.array(net.counts, np.int64))
        return draft.find(needles, KeyColumns((*ids, table.exact_id)), counts), needles.codes
    texts = keys.column(ITEM_EXACT).combine_chunks()
    # Keys that their columns can't hold are compared by their texts as well.
    exact = sorted({name for value in texts.to_pylist() for name, _ in value or ()})
    keys = keys.drop_columns([ITEM_EXACT])
    for name in exact:
        keys = keys.append_column(f"{name}{ITEM_EXACT}", entry_of(texts, name))
    needles = Needles(keys)
    found = draft.find(needles, KeyColumns(ids, tuple(exact), table.exact_id))
    return found, needles.codes


def _with_borrowed(
    draft: TableDraft,
    table: LakeTable,
    net: NetChanges,
    rows: pa.Table,
    found: Found,
    codes: Ints,
) -> pa.Table:
    """The rows with values that only the lake has."""
    columns = sorted({name for each in net.borrowed for name in each.columns})
    texts = rows.column(ITEM_EXACT).to_pylist()
    lent_texts = draft.values(found, table.exact_id, ITEM_EXACT)
    for name in columns:
        lent = draft.values(found, table.field_id(name), name)
        values: list[Any] = list(rows.column(name).to_pylist())
        for each in net.borrowed:
            if name not in each.columns:
                continue
            code = int(codes[each.key])
            # The lake should have it. Copying the table again repairs it.
            if code not in lent:
                raise LakeRowMissingError(
                    f"{table.name}: a change lacks its value of {name}, and the lake has no row "
                    f"with the key {net.keys[each.key]}"
                )
            value = lent[code]
            values[each.row] = None if value is None else value.as_py()
            text = lent_texts.get(code)
            known = dict((None if text is None else text.as_py()) or ())
            if name in known:
                texts[each.row] = [*(texts[each.row] or ()), (name, known[name])]
        place = rows.column_names.index(name)
        field = rows.schema.field(name)
        rows = rows.set_column(place, field, pa.array(values, field.type))
    place = rows.column_names.index(ITEM_EXACT)
    field = rows.schema.field(ITEM_EXACT)
    return rows.set_column(place, field, pa.array(texts, field.type))
