"""A table's description, as a cut stores it."""

from __future__ import annotations

import json

from headrace.lake.catalog import TableName
from headrace.lake.tables import LakeTable, new_table
from tests.support.local_lake import COLUMNS

NAME = TableName("public", "numbers")


def test_a_table_that_a_later_version_described_is_read_without_what_it_adds() -> None:
    table = new_table(NAME, 7, COLUMNS, ("id",), 100)
    body = json.loads(json.dumps(table.encode()))
    for part in (body, *body["columns"]):
        part["unheard_of"] = 1
    assert LakeTable.decode(NAME, body) == table
