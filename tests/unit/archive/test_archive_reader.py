"""WalReader returns each row once and in order, with one request for a poll, and distinguishes
missing, collected and torn files and gaps.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]  # its stubs are a separate package
import pytest
from typer.testing import CliRunner

from headrace.archive import (
    AsyncWalReader,
    Gap,
    RowKind,
    WalFileCollectedError,
    WalFileCorruptError,
    WalGapError,
    WalReader,
    WalReaderOptions,
)
from headrace.archive import collect as collecting
from headrace.archive.errors import FileTakenError
from headrace.archive.layout import file_name
from headrace.archive.registry import register, registered, unregister
from headrace.cli.main import app
from tests.support.archive_maker import Maker


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    return Maker.with_files(tmp_path, 5)


def ids(reader: WalReader, **place: object) -> list[int]:
    return [entry.key["id"] for entry in reader.follow(**place, wait=False)]  # type: ignore[arg-type,index]  # each has its type


def collect(made: Maker, count: int) -> None:
    for file_id in range(1, count + 1):
        made.store.delete(file_name(file_id))


def test_rows_come_in_commit_order_each_once(made: Maker) -> None:
    entries = list(WalReader(made.url).follow(wait=False))
    assert [entry.key for entry in entries] == [{"id": number} for number in range(100)]
    assert all(later.position > earlier.position for earlier, later in itertools.pairwise(entries))
    assert {entry.kind for entry in entries} == {RowKind.PUT}
    assert entries[7].after == {"id": 7, "note": "row 7"}
    assert entries[37].commit_time == datetime(1970, 1, 4, tzinfo=UTC)


async def test_the_asynchronous_reader_reads_the_same(made: Maker) -> None:
    reader = AsyncWalReader(made.url)
    assert [entry async for entry in reader.follow(wait=False)] == list(
        WalReader(made.url).follow(wait=False)
    )
    file = await reader.get(2)
    assert file is not None
    assert [entry.ordinal async for entry in file] == [*range(10), *range(10)]
    metadata = await file.metadata()
    assert metadata is not None
    assert metadata.location == file_name(2)
    assert await reader.get(6) is None
    assert [file_id for file_id, _ in await reader.list(2, 4)] == [2, 3]


def test_reading_begins_at_an_id_an_lsn_or_a_time(made: Maker) -> None:
    reader = WalReader(made.url)
    assert ids(reader, from_id=4) == list(range(60, 100))
    assert ids(reader, from_lsn=400) == list(range(30, 100))
    assert ids(reader, from_lsn=401) == list(range(40, 100))
    assert ids(reader, from_time=datetime(1970, 1, 8, tzinfo=UTC)) == list(range(70, 100))
    assert ids(reader, from_lsn=10_000) == []


def test_one_table_is_read_without_fetching_files_that_lack_it(made: Maker) -> None:
    made.write(10)  # only orders
    reader = WalReader(made.url, WalReaderOptions(tables=("public.items",)))
    assert ids(reader) == [number for number in range(100) if number // 10 % 2]
    assert reader.metrics.files_skipped == 1


def test_a_poll_for_the_next_file_costs_one_request(made: Maker) -> None:
    reader = WalReader(made.url)
    assert reader.get(5) is not None
    assert reader.get(6) is None, (
        "which costs a look whether there is a later one, once in recheck_s"
    )
    before = reader.metrics.requests
    assert reader.get(6) is None
    assert reader.get(6) is None
    assert reader.metrics.requests == before + 2
    made.write()
    found = reader.get(6)
    assert found is not None
    assert found.id == 6
    assert reader.metrics.requests == before + 3
    assert len(list(found)) == 20
    assert reader.metrics.requests == before + 3, "a small file came whole with its footer"


def test_a_store_that_gives_no_last_bytes_is_asked_for_the_size_first(made: Maker) -> None:
    reader = WalReader(made.url, WalReaderOptions(tail_bytes=6000))
    expected = ids(reader)
    reader.store.tells_tail = False
    assert ids(reader) == expected


def test_a_collected_file_is_told_from_one_that_is_not_there_yet(made: Maker) -> None:
    collect(made, 3)
    reader = WalReader(made.url)
    assert reader.get(6) is None
    assert reader.get(99) is None
    with pytest.raises(WalFileCollectedError):
        reader.get(2)
    assert [file_id for file_id, _ in reader.list(2)] == [4, 5]
    assert ids(reader) == list(range(60, 100))


def test_metadata_of_a_file_that_went_meanwhile_is_none(made: Maker) -> None:
    file = WalReader(made.url).get(1)
    assert file is not None
    assert file.metadata() is not None
    collect(made, 1)
    assert file.metadata() is None


def test_following_waits_at_the_tail(made: Maker) -> None:
    reader = WalReader(made.url, WalReaderOptions(poll_interval_s=0.02))
    writer = threading.Timer(0.2, made.write)
    writer.start()
    keys = [entry.key for entry in itertools.islice(reader.follow(from_id=6), 20)]
    assert keys == [{"id": number} for number in range(100, 120)]
    writer.join()


def test_a_file_is_created_or_refused_and_never_overwritten(made: Maker) -> None:
    before = WalReader(made.url).get(3)
    with pytest.raises(FileTakenError):
        made.store.put_new(file_name(3), b"a zombie's")
    after = WalReader(made.url).get(3)
    assert before is not None
    assert after is not None
    assert after.info == before.info


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-30], lambda data: data[:40] + b"?" + data[41:], lambda _: b""]
)
def test_bytes_that_were_not_written_so_are_refused(
    made: Maker, tmp_path: Path, spoil: object
) -> None:
    path = tmp_path / "archive" / file_name(2)
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]  # one of the functions above
    with pytest.raises(WalFileCorruptError):
        ids(WalReader(made.url))
    found = CliRunner().invoke(app, ["archive", "verify", "--url", made.url])
    assert found.exit_code == 1
    assert "file 2" in found.stdout


def test_a_gap_stops_a_reader_that_did_not_ask_to_be_told(made: Maker) -> None:
    made.write(10, gap=Gap(1000, 1050, "slot_moved"))
    with pytest.raises(WalGapError, match="0/3E8"):
        ids(WalReader(made.url))
    assert len(ids(WalReader(made.url, WalReaderOptions(raise_at_gap=False)))) == 110


def age(tmp_path: Path, days: int) -> None:
    """Let every file be as old as its number says, the first the oldest."""
    for number, path in enumerate(sorted((tmp_path / "archive").glob("*.parquet"))):
        then = time.time() - (days - number) * 86_400
        os.utime(path, (then, then))


def left(made: Maker) -> list[int]:
    return [file_id for file_id, _ in WalReader(made.url).list()]


def test_garbage_goes_by_age_from_the_oldest_and_never_the_last_file(
    made: Maker, tmp_path: Path
) -> None:
    age(tmp_path, 10)
    collecting.carry_out(made.store, collecting.plan(made.store, 8.5 * 86_400))
    assert left(made) == [3, 4, 5]
    collecting.carry_out(made.store, collecting.plan(made.store, 0))
    assert left(made) == [5]


def test_garbage_collection_stops_at_a_registered_reader_unless_told(
    made: Maker, tmp_path: Path
) -> None:
    age(tmp_path, 10)
    register(made.store, "lake", 3)
    register(made.store, "audit", 5)
    planned = collecting.plan(made.store, 0)
    assert [reader.name for reader in planned.kept_by] == ["lake"]
    collecting.carry_out(made.store, planned)
    assert left(made) == [3, 4, 5]
    assert {reader.name: reader.next_id for reader in registered(made.store)} == {
        "lake": 3,
        "audit": 5,
    }
    runner = CliRunner()
    assert (
        runner.invoke(app, ["archive", "gc", "--older-than", "0", "--url", made.url]).exit_code == 0
    )
    assert left(made) == [3, 4, 5]
    unregister(made.store, "lake")
    runner.invoke(app, ["archive", "gc", "--older-than", "1d", "--past-readers", "--url", made.url])
    assert left(made) == [5]


def test_the_command_prints_files_and_rows(made: Maker) -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["archive", "ls", "--json", "--url", made.url])
    assert listed.exit_code == 0
    assert len(listed.stdout.splitlines()) == 5
    assert runner.invoke(app, ["archive", "verify", "--url", made.url]).exit_code == 0
    assert runner.invoke(app, ["archive", "cat", "--url", f"{made.url}/none"]).exit_code == 1
    refused = runner.invoke(app, ["archive", "cat", "--from", "yesterday", "--url", made.url])
    assert refused.exit_code == 1


@pytest.mark.parametrize(
    "command",
    [
        ("archive", "cat", "orders", "public.itmes"),
        (
            "replay",
            "--table",
            "orders",
            "--table",
            "public.itmes",
            "--into",
            "sqlite:///{folder}/a.db",
        ),
    ],
)
def test_a_table_that_the_archive_does_not_contain_is_refused_with_those_that_it_does(
    command: tuple[str, ...], made: Maker, tmp_path: Path
) -> None:
    # As a user's first look at an archive: no service of the suite runs.
    arguments = [word.format(folder=tmp_path) for word in command]
    refused = CliRunner().invoke(app, [*arguments, "--url", made.url])
    assert refused.exit_code == 1
    assert "the archive contains no change of public.itmes" in refused.stderr
    assert "It contains public.items, public.orders." in refused.stderr


def test_a_table_without_rows_in_the_chosen_range_is_not_refused(made: Maker) -> None:
    # The last transaction is of the other table.
    quiet = CliRunner().invoke(
        app, ["archive", "cat", "orders", "--from", "0/3E8", "--url", made.url]
    )
    assert (quiet.exit_code, quiet.stdout) == (0, "")


def test_pandas_reads_a_folder_of_files_as_it_is(made: Maker, tmp_path: Path) -> None:
    frame = pd.concat(
        pd.read_parquet(path) for path in sorted((tmp_path / "archive").glob("*.parquet"))
    )
    assert len(frame) == 100
    assert frame["commit_time"].iloc[10] == pd.Timestamp(1970, 1, 1, tz="UTC") + timedelta(days=1)
