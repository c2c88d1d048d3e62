"""The conformance kit: the built-in sinks pass, and for each claim a broken sink fails."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from headrace.consumer import Watermark
from headrace.sinks import Promise, RoutedTransaction, Sink, SinkOptions
from headrace.sinks.files import FilesSink
from headrace.testing.sinks import conformance
from tests.support.memory_sink import MemorySink, Target
from tests.support.sinks import events_of

EXAMPLES = Path(__file__).parents[3] / "examples/python"


def kit_of(kind: type[MemorySink]) -> None:
    target = Target()
    conformance.run(lambda: kind(target), lambda: [record.id for record in target.records])


def test_a_sink_in_memory_keeps_every_claim() -> None:
    kit_of(MemorySink)


@pytest.mark.parametrize("form", ["ndjson", "parquet"])
def test_files_keep_every_claim(tmp_path: Path, form: str) -> None:
    options = SinkOptions("files", tmp_path.as_uri(), options={"form": form})
    conformance.run(
        lambda: FilesSink(options), lambda: [event["msg_id"] for event in events_of(tmp_path)]
    )


def test_the_sink_of_the_page_keeps_every_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import own_sink  # type: ignore[import-not-found]  # on the path only in this test

    file = tmp_path / "events.db"
    options = SinkOptions("own", "python:own_sink:SqliteSink", options={"file": str(file)})

    def read() -> list[str]:
        with contextlib.closing(sqlite3.connect(file)) as reader:
            return [one for (one,) in reader.execute("SELECT id FROM events ORDER BY rowid")]

    conformance.run(lambda: own_sink.SqliteSink(options), read)


class Reversed(MemorySink):
    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        await super().write(transactions)
        self._written.reverse()


class LastWriteOnly(MemorySink):
    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        self._written = []
        await super().write(transactions)


class Hasty(MemorySink):
    """Shows records before the commit."""

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        await super().write(transactions)
        self._target.records += self._written
        self._written = []


class Forgetful(MemorySink):
    """Keeps only the source's marks."""

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        await super().commit({lane: mark for lane, mark in marks.items() if "/" not in lane})


class Leaking(MemorySink):
    """The next session commits the records that one has left behind."""

    left: ClassVar[list[RoutedTransaction]] = []

    async def open(self) -> Mapping[str, Watermark]:
        marks = await super().open()
        await super().write(type(self).left)
        type(self).left = []
        return marks

    async def write(self, transactions: Sequence[RoutedTransaction]) -> None:
        await super().write(transactions)
        type(self).left = [*transactions]

    async def commit(self, marks: Mapping[str, Watermark]) -> None:
        await super().commit(marks)
        type(self).left = []


class Unfenced(MemorySink):
    async def open(self) -> Mapping[str, Watermark]:
        return dict(self._target.marks)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (Reversed, "order"),
        (LastWriteOnly, "shared commit"),
        (Forgetful, "marks after a commit without records"),
        (Hasty, "before the commit"),
        (Leaking, "abandoned"),
        (Unfenced, "an older session commits"),
    ],
)
def test_a_broken_sink_fails_the_claim_that_it_breaks(broken: type[MemorySink], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        kit_of(broken)


def test_a_sink_that_promises_less_is_held_to_less() -> None:
    class AtLeastOnce(Unfenced):
        promise = Promise.AT_LEAST_ONCE

    kit_of(AtLeastOnce)
    sink: Sink = AtLeastOnce(Target())
    assert conformance.claims_of(sink.promise) == conformance.EVERY
