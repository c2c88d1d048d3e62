"""A repair of documents next to the sink's own writes, which come before, between and after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from headrace.contract import type_oids
from headrace.contract.values import ArrayForm
from headrace.mirror.source_values import SourceValues
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.port import SinkAwayError
from headrace.spark.plan import PlannedColumn
from headrace.spark.source import HeldSnapshot
from headrace.testing.names import Names
from headrace.testing.opensearch import OpenSearchServer
from headrace.verify.digest import Row
from headrace.verify.document_repair import DocumentRepair
from headrace.verify.documents import Documents
from tests.support.opensearch_place import Place

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# The LSN of the comparison.
LSN = 800
# The OID of the type.
TEXT = 25


@pytest.fixture
async def place(opensearch: OpenSearchServer, names: Names) -> Place:
    """Rows 1 to 3, of which another program has damaged two and removed one, and added a fourth."""
    made = Place(opensearch, names.other("sink").lower())
    await made.apply(made.inserts(80, 1, 2, 3, name="right"))
    index = f"/{made.index}"
    for document in ("1", "2"):
        made.reader.ask("POST", f"{index}/_update/{document}", {"doc": {"name": "damaged"}})
    made.reader.ask("DELETE", f"{index}/_doc/3")
    made.reader.ask("PUT", f"{index}/_doc/4", {"id": 4, "name": "extra"})
    return made


async def prepared(place: Place) -> DocumentRepair:
    """The repair of all four."""
    to = f"opensearch://127.0.0.1:{place.server.port}"
    documents = Documents.of(SinkConfiguration(place.name, to), {}, "")
    await documents.client.connect()
    aliases = (await documents.tables())["public", "users"]
    repair = DocumentRepair(documents.client, documents.options, aliases.write, LSN)
    columns = (PlannedColumn("id", type_oids.INT4), PlannedColumn("name", TEXT))
    held = HeldSnapshot(LSN, "", columns, ("id",), {}, (), (), 3, asyncio.Event())
    values = SourceValues(held, ("id", "name"), ArrayForm.LITERAL)

    async def rows() -> AsyncIterator[list[Row]]:
        yield [(str(number), str(number), "right") for number in (1, 2, 3)]

    await repair.prepare(frozenset({"1", "2", "3", "4"}), rows(), values)
    return repair


async def test_what_it_writes_is_the_source_s(place: Place) -> None:
    repair = await prepared(place)
    assert await repair.write() == 4
    await repair.client.close()
    assert place.rows() == {str(one): {"id": one, "name": "right"} for one in (1, 2, 3)}


async def test_a_change_behind_the_comparison_stays_and_one_before_it_comes_too_late(
    place: Place,
) -> None:
    repair = await prepared(place)
    later = place.transaction(
        LSN, ("UPDATE", {"id": 1, "name": "new"}), ("DELETE", {"id": 3}), ("INSERT", {"id": 4})
    )
    await place.apply(later)
    # Only the document of the second row has no later change.
    assert await repair.write() == 1
    await repair.client.close()
    wanted = {"1": {"id": 1, "name": "new"}, "2": {"id": 2, "name": "right"}, "4": {"id": 4}}
    assert place.rows() == wanted
    # A replay of older changes, and a change that follows.
    await place.apply(place.transaction(LSN - 8, ("UPDATE", {"id": 2, "name": "old"})))
    assert place.rows() == wanted
    await place.apply(place.transaction(LSN + 8, ("UPDATE", {"id": 2, "name": "newest"})))
    assert place.rows() == {**wanted, "2": {"id": 2, "name": "newest"}}


async def test_an_index_that_replaces_the_compared_one_is_not_written_to(place: Place) -> None:
    repair = await prepared(place)
    await place.apply(place.transaction(LSN + 8, ("TRUNCATE", {}), ("INSERT", {"id": 5})))
    with pytest.raises(SinkAwayError):
        await repair.write()
    await repair.client.close()
    assert place.rows() == {"5": {"id": 5}}
