"""Hostile names and keys in OpenSearch: no two share an index, a document or a field."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from headrace.consumer import Event
from headrace.sinks.opensearch import OpenSearchSink
from headrace.sinks.port import (
    RefusedError,
    SinkOptions,
)
from headrace.sinks.routing import Router
from headrace.testing.names import Names
from headrace.testing.opensearch import OpenSearchServer
from tests.support.opensearch_place import Place
from tests.support.sink_records import event, marks, of_events

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def place(opensearch: OpenSearchServer, names: Names) -> Place:
    return Place(opensearch, names.other("sink").lower())


def constant(destination: str, _: Event) -> str:
    return destination


HOSTILE = [
    "Orders",
    "orders",
    "_orders",
    "ORDERS*",
    "a,b",
    "a b",
    "é",
    "=c3=a9",
    "..",
    "~",
    "#?/\\",
]


async def test_hostile_names_have_indices_of_their_own(place: Place) -> None:
    names = {name: f"{place.name}.{name}" for name in HOSTILE}
    long = {f"{letter}{'é' * 60}": f"{place.name}.{'x' * 150}{letter}é" for letter in "ab"}
    found = []
    for number, (name, destination) in enumerate((names | long).items()):
        router = Router(destination=partial(constant, destination))
        one = event(8 * number + 8, 0, "INSERT", {"id": 1, "name": name}, last=True, table=name)
        found.append(of_events(one, router=router))
    place.columns = []

    sink = OpenSearchSink(
        SinkOptions(place.name, f"opensearch://127.0.0.1:{place.server.port}", "", {"replicas": 0})
    )
    await sink.open()
    await sink.write(found)
    await sink.commit(marks(*found))
    await sink.close()
    everything = place.reader.ask("GET", f"/{place.name}.*/_alias")
    aliases = [name for one in everything.values() for name in one["aliases"]]
    readers = [name for name in aliases if "~" not in name]
    assert len(readers) == len(found)
    rows = [row["name"] for name in readers for row in place.reader.rows(name).values()]
    assert sorted(rows) == sorted(names | long)
    assert place.reader.rows(f"{place.name}.orders") == {"1": {"id": 1, "name": "orders"}}


KEYS: list[Any] = [
    7, -7, "7", "a", "A", "", " ", "[7]", '["a"]', "sha256:x", "é" * 255, "x" * 512, "x" * 513,
    "x" * 514, "x" * 2000, "/", "\u0001", True,
]  # fmt: skip


async def test_every_key_has_a_document_of_its_own(place: Place) -> None:
    # A key of one column has one type; the columns here are two.
    single = [
        event(8, at, "INSERT", {"id": key, "at": at}, last=False)
        for at, key in enumerate(KEYS)
        if isinstance(key, str)
    ]
    await place.apply(place.routed(*single))
    assert sorted(row["at"] for row in place.rows().values()) == [
        at for at, key in enumerate(KEYS) if isinstance(key, str)
    ]
    assert all(len(document.encode()) <= 512 for document in place.rows())
    assert place.rows()["a"]["id"] == "a"
    both = Place(place.server, f"{place.name}-both")
    found = [
        event(8, at, "INSERT", {"a": 1, "b": key, "at": at}, last=False, key=["a", "b"])
        for at, key in enumerate(KEYS)
    ]
    await both.apply(both.routed(*found))
    assert sorted(row["at"] for row in both.rows().values()) == list(range(len(KEYS)))
    for keyless in (
        event(16, 0, "INSERT", {"a": 1}, last=True, key=[]),
        event(16, 0, "INSERT", {"id": None}, last=True),
    ):
        with pytest.raises(RefusedError, match="key"):
            await place.apply(place.routed(keyless))


async def test_hostile_columns_have_fields_of_their_own(place: Place) -> None:
    names = ["a", "a.b", "a=2eb", "_id", "=5fid", "_source", " ", ".", "..", "=text", "Ä", "x" * 63]
    row = {"id": 1, **{name: number for number, name in enumerate(names)}}
    place.columns = [{"name": name, "data_type": "integer"} for name in row]
    await place.apply(place.routed(event(8, 0, "INSERT", row, last=True)))
    (found,) = place.rows().values()
    assert sorted(found.values()) == sorted(row.values())
    assert {"a=2eb", "=5fid", "a"} <= found.keys()
    for number in range(len(names)):
        hits = [
            name
            for name in place.reader.fields(place.index)
            if name not in {"=text", "=unknown"}
            and place.reader.found(place.index, {"term": {name: number}})
        ]
        assert len(hits) == (2 if number == 1 else 1), "id is 1 too"
