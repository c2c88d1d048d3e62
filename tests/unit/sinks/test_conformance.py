"""The conformance kit: the built-in sinks pass, and for each claim a broken sink fails."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import orjson
import pytest

from headrace.sinks import Promise, SinkOptions
from headrace.sinks.files import FilesSink
from headrace.testing.sinks import conformance
from tests.support import broken_sinks as broken
from tests.support.memory_sink import MemorySink, Target
from tests.support.sinks import events_of, lines_of

EXAMPLES = Path(__file__).parents[3] / "examples/python"


def kit_of(kind: type[MemorySink], **bench: Any) -> list[str]:
    """Check it with everything that a target in memory allows."""
    target = Target()
    kept: list[Target] = []

    async def save() -> None:
        kept.append(Target([*target.records], dict(target.marks)))

    async def restore() -> None:
        target.records[:] = kept[-1].records
        target.marks = kept[-1].marks

    return conformance.run(
        lambda: kind(target),
        lambda: [record.id for record in target.records],
        values=lambda: {record.id: record.value for record in target.records},
        backup=conformance.Backup(save, restore),
        **bench,
    )


def test_a_sink_in_memory_keeps_every_claim() -> None:
    checked = kit_of(MemorySink)
    needed = {"kills": "process", "lost_answers": "proxied"}
    claims = {claim.name for claim in conformance.claims_of(Promise.EXACTLY_ONCE)}
    assert set(checked) == claims - needed.keys()


def values_of(folder: Path) -> dict[str, bytes]:
    """Each line or row as it is."""
    return {orjson.loads(value)["msg_id"]: value for value in lines_of(folder)}


@pytest.mark.parametrize("form", ["ndjson", "parquet"])
def test_files_keep_every_claim(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "changes"
    folder.mkdir()
    kept = tmp_path / "kept"
    options = SinkOptions("files", folder.as_uri(), options={"form": form})

    async def save() -> None:
        shutil.copytree(folder, kept)

    async def restore() -> None:
        shutil.rmtree(folder)
        kept.rename(folder)

    points = ("files.written", "files.before_create", "files.created")
    checked = conformance.run(
        lambda: FilesSink(options),
        lambda: [event["msg_id"] for event in events_of(folder)],
        values=lambda: values_of(folder),
        process=conformance.Process("file:", options, points),
        backup=conformance.Backup(save, restore),
    )
    # Files have no answers that a connection could lose.
    assert set(checked) == {claim.name for claim in conformance.claims_of(Promise.EXACTLY_ONCE)} - {
        "lost_answers"
    }


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

    process = conformance.Process(options.to, options)
    checked = conformance.run(lambda: own_sink.SqliteSink(options), read, process=process)
    assert "kills" in checked


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (broken.Reversed, "order"),
        (broken.ReversedInAKey, "order"),
        (broken.LastWriteOnly, "shared commit"),
        (broken.Forgetful, "marks after a commit without records"),
        (broken.Hasty, "before the commit"),
        (broken.Leaking, "abandoned"),
        (broken.Unfenced, "an older session: readers see a record twice"),
        (broken.ByPosition, "copies"),
        (broken.Skipping, "large"),
        (broken.Cutting, "large"),
        (broken.Rounding, "values"),
        (broken.RowsOnly, "every operation"),
        (broken.Unaware, "an older state: a session commits"),
    ],
)
def test_a_broken_sink_fails_the_claim_that_it_breaks(kind: type[MemorySink], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        kit_of(kind)


def test_a_refusal_that_names_another_record_fails() -> None:
    with pytest.raises(AssertionError, match="is named"):
        kit_of(broken.Misnaming, refused_bytes=2000)


def test_a_record_that_should_be_refused_and_is_not_fails() -> None:
    with pytest.raises(AssertionError, match="are not refused"):
        kit_of(MemorySink, refused_bytes=2000)


def test_a_sink_that_promises_less_is_held_to_less() -> None:
    class AtLeastOnce(broken.Unfenced):
        promise = Promise.AT_LEAST_ONCE

    checked = kit_of(AtLeastOnce)
    assert "an_older_session_changes_nothing" not in checked
    assert "a_replay_changes_nothing" not in checked


def test_the_right_state_survives_a_replay_and_a_list_of_changes_does_not() -> None:
    assert "a_replay_changes_nothing" in kit_of(broken.Table)
    with pytest.raises(AssertionError, match="replay"):
        kit_of(broken.ListOfChanges)


def checked_process(folder: Path, kind: str, *points: str) -> None:
    """Check a sink of files that a process writes, one line for each record."""
    options = SinkOptions("broken", "", options={"file": str(folder / "records")})
    sink = getattr(broken, kind)
    process = conformance.Process(f"python:tests.support.broken_sinks:{kind}", options, points)
    conformance.run(lambda: sink(options), lambda: broken.ids_in(options), process=process)


def test_kills_find_a_sink_that_stores_the_marks_before_the_data(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="kills: readers do not see"):
        checked_process(tmp_path, "MarksFirst", "broken.between")


def test_kills_find_a_sink_that_stores_the_data_before_the_marks(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="kills: readers see a record twice"):
        checked_process(tmp_path, "DataFirst", "broken.between")


def test_a_failpoint_that_is_never_reached_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="kills: nowhere was not reached"):
        checked_process(tmp_path, "DataFirst", "nowhere")


async def checked_connection(kind: type[broken.Remote]) -> list[str]:
    """Check a sink that writes over a connection."""
    async with broken.serve() as (port, target):
        return await conformance.check(
            lambda: kind(port),
            lambda: [*target.records],
            proxied=conformance.Proxied(port, kind),
        )


async def test_a_sink_that_asks_what_was_committed_survives_lost_answers() -> None:
    assert "lost_answers" in await checked_connection(broken.Remote)


async def test_lost_answers_find_a_sink_that_does_not_ask() -> None:
    with pytest.raises(AssertionError, match="lost answers"):
        await checked_connection(broken.Remembers)


async def test_an_answer_that_was_never_lost_fails() -> None:
    async with broken.serve() as (port, target):
        with pytest.raises(AssertionError, match="no answer was lost"):
            await conformance.check(
                lambda: broken.Remote(port),
                lambda: [*target.records],
                # Not by the proxy's port.
                proxied=conformance.Proxied(port, lambda _: broken.Remote(port)),
            )
