"""The archive gives values back digit for digit, as the stream has them: rows, and the events made
of them again.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headrace.archive import file_format
from headrace.archive.columns import completed, entries
from headrace.archive.entry import RowEntry
from headrace.archive.file_format import WalFileEncoder
from headrace.archive.metadata import WalFileInfo
from headrace.archive.payloads import Payloads
from headrace.archiver.archived_table import OPTIONS, ArchivedTable
from headrace.archiver.builder import Begun, Builder, Limits
from headrace.confirming.relation_shape import RelationShape
from headrace.contract import events, type_oids
from headrace.contract.values import Encoding, ValueOptions
from headrace.lsn import ORIGIN
from headrace.pgoutput import messages
from headrace.postgres.facts import TableFacts
from headrace.publisher.assembler import Assembler
from headrace.publisher.published_event import PublishedEvent
from headrace.publisher.table_events import TableEvents

INFO = WalFileInfo(1, "a", 1, "w", "headrace", "d", "1", 1, 1, 2, 0, ORIGIN, ORIGIN)
RELATION = messages.Relation(
    7,
    "public",
    "t",
    "f",
    (
        messages.RelationColumn(True, "id", 23, -1),
        messages.RelationColumn(True, "doc", type_oids.JSON, -1),
    ),
)
DOCUMENTS = (
    "null", '{"p": 1.50}', "12345678901234567890123", "18446744073709551617", "1e400", r'"\ud800"', '{"a":1, "a":2}',
    "[" * 600 + "]" * 600, '{"plain": [1, 2.5]}', "0.1234567890123456789", '"null"',
)  # fmt: skip


def changes() -> list[messages.PgoutputMessage]:
    made: list[messages.PgoutputMessage] = [messages.Insert(7, (b"0", None))]
    for number, document in enumerate(DOCUMENTS, 1):
        row = str(number).encode(), document.encode()
        made += [
            messages.Insert(7, row),
            messages.Update(7, None, row, row),
            messages.Delete(7, None, row),
        ]
    return made


def archived() -> tuple[WalFileInfo, list[RowEntry]]:
    builder, writer = Builder(Begun(ORIGIN, 1), Limits(1000, 1 << 20)), WalFileEncoder()
    builder.learn(ArchivedTable.of(RelationShape.of(RELATION, TableFacts(), OPTIONS)))
    for message in (messages.Begin(99, 0, 7), *changes(), messages.Commit(0, 99, 100, 0)):
        builder.feed(9, message)
    sealed = builder.seal()
    writer.add(sealed.rest)
    data, info = writer.finish(replace(INFO, tables=sealed.tables))
    return info, [entry for batch in file_format.batches(data) for entry in entries(batch)]


def streamed(encoding: Encoding) -> list[dict[str, object]]:
    assembler = Assembler("headrace", encoding)
    shape = RelationShape.of(RELATION, TableFacts(), ValueOptions(encoding))
    assembler.learn(TableEvents.of(shape))
    sent = (messages.Begin(99, 0, 7), *changes(), messages.Commit(0, 99, 100, 0))
    made = [
        events.decode(e.payload)
        for m in sent
        for e in assembler.feed(9, m)
        if isinstance(e, PublishedEvent)
    ]
    return [payload for payload in made if payload["operation"] != "SCHEMA"]


def test_replayed_events_have_what_the_streams_have() -> None:
    info, rows = archived()
    again = [events.decode(event.payload) for event in Payloads().of((info, row) for row in rows)]
    for mine, theirs in zip(again, streamed(Encoding.JSON), strict=True):
        names = ("operation", "data", "old", "exact", "exact_old")
        assert {name: mine.get(name) for name in names} == {
            name: theirs.get(name) for name in names
        }


def test_a_transaction_that_goes_on_in_a_later_file_has_no_last_event() -> None:
    info, rows = archived()
    for whole in (True, False):
        cut = replace(info, whole=whole, last=rows[-1].position)
        lasts = [
            events.decode(event.payload)["tx"]["last"]
            for event in Payloads().of((cut, row) for row in rows)
        ]
        assert lasts == [False] * (len(rows) - 1) + [whole]
    before = [rows[0]._replace(commit_lsn=rows[0].commit_lsn - 1)]
    cut = replace(info, whole=False, last=rows[-1].position)
    assert [
        events.decode(event.payload)["tx"]["last"]
        for event in Payloads().of((cut, row) for row in before)
    ] == [True]


def test_a_row_is_read_as_the_stream_has_it() -> None:
    for row, event in zip(archived()[1], streamed(Encoding.MSGPACK), strict=True):
        if row.operation == "delete":
            assert (row.after, row.exact_before) == (None, event.get("exact_old", {}))
            continue
        assert row.exact == event.get("exact", {})
        assert row.exact_before == event.get("exact_old", {})
        # Half a surrogate pair has no native form in MessagePack.
        if row.exact.get("doc") != r'"\ud800"':
            assert row.after == event["data"]


def test_a_file_without_exact_texts_is_read_too() -> None:
    _, rows = archived()
    assert sum(row.exact_json is not None for row in rows) == 3 * (len(DOCUMENTS) - 2)
    older = pa.RecordBatch.from_pydict({"commit_lsn": [1], "after": ['{"id":1}']})
    assert completed(older).to_pydict() == {
        "commit_lsn": [1],
        "after": ['{"id":1}'],
        "exact": [None],
    }
