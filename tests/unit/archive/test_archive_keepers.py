"""Verification and garbage collection of an archive, its registered readers, and its store."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
import orjson
import pytest
from obstore import exceptions

from headrace.archive import (
    AsyncWalReader,
    Gap,
    WalFileCollectedError,
    WalFileCorruptError,
    WalReader,
    WalReaderOptions,
    layout,
)
from headrace.archive import collect as collecting
from headrace.archive import store as stores
from headrace.archive.check import ArchiveTotals, verify
from headrace.archive.errors import (
    ArchiveError,
    ArchiveUnreachableError,
    FileTakenError,
    StoreFullError,
)
from headrace.archive.layout import file_id, file_name, reader_name
from headrace.archive.registry import register, registered, unregister
from headrace.archive.store import ByteRange, Get, Head, Names, Store
from headrace.errors import DecodeError
from headrace.lsn import Position
from tests.support.archive_maker import Maker


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    return Maker.with_files(tmp_path, 3)


def path(made: Maker, number: int) -> Path:
    return Path(made.url.removeprefix("file://"), file_name(number))


def found(made: Maker, first: int = 1, stop: int | None = None) -> tuple[list[Any], ArchiveTotals]:
    totals = ArchiveTotals()
    findings = list(verify(WalReader(made.url), totals, first, stop))
    return [(one.file_id, one.fault) for one in findings], totals


def test_a_sound_archive_has_no_fault_and_all_of_it_was_read(made: Maker) -> None:
    size = sum(path(made, number).stat().st_size for number in (1, 2, 3))
    assert found(made) == ([], ArchiveTotals(files=3, rows=60, bytes=size, faults=0))
    register(made.store, "lake", 4)
    assert found(made, 2, 3)[1].files == 1
    assert found(made)[0] == [], "a reader that is at the end has read nothing that is missing"


def test_a_gap_is_reported_and_is_no_fault(made: Maker) -> None:
    made.write(10, gap=Gap(600, 650, "slot_moved"))
    faults, totals = found(made)
    assert faults == [(4, "records a gap: 0/258 to before 0/28A (slot_moved)")]
    assert totals.faults == 0
    assert totals.rows == 70


def test_each_fault_is_counted_and_the_rest_is_read(made: Maker) -> None:
    made.write()
    path(made, 2).write_bytes(path(made, 2).read_bytes()[:-1])
    faults, totals = found(made)
    assert [number for number, _ in faults] == [2]
    assert not faults[0][1].startswith("file 2")
    assert (totals.files, totals.rows, totals.faults) == (4, 60, 1)


def test_missing_files_are_named_from_the_first_to_the_last(made: Maker) -> None:
    for _ in range(3):
        made.write()
    for number in (2, 4, 5):
        path(made, number).unlink()
    faults, _ = found(made)
    assert faults == [
        (2, "is missing"),
        (4, "is missing, and so are all up to file 5"),
    ]


@pytest.mark.parametrize(
    ("left", "next_id", "fault"),
    [
        ((1, 2, 3), 5, (4, "is missing (the reader lake has read it)")),
        ((1,), 4, (2, "is missing, and so are all up to file 3 (the reader lake has read it)")),
        ((), 3, (1, "is missing, and so are all up to file 2 (the reader lake has read it)")),
        ((), 1, None),
        ((1, 2, 3), 4, None),
        ((1, 2, 3), 2, None),
    ],
)
def test_what_a_registered_reader_has_read_existed(
    made: Maker, left: tuple[int, ...], next_id: int, fault: tuple[int, str] | None
) -> None:
    register(made.store, "lake", next_id)
    for number in {1, 2, 3}.difference(left):
        path(made, number).unlink()
    assert found(made)[0] == ([] if fault is None else [fault])
    assert found(made, stop=4)[0] == [], "a part has no end to compare with"


def test_a_file_that_is_collected_while_it_is_verified_is_no_fault(
    made: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = WalReader(made.url)
    listed = reader.list()
    path(made, 1).unlink()
    monkeypatch.setattr(reader, "list", lambda *_: listed)
    totals = ArchiveTotals()
    assert list(verify(reader, totals)) == []
    assert (totals.files, totals.rows) == (3, 40)


NOW = datetime(2026, 1, 10, tzinfo=UTC)


def aged(made: Maker) -> None:
    """The files are three, two and one days old."""
    for number in (1, 2, 3):
        then = (NOW - timedelta(days=4 - number)).timestamp()
        os.utime(path(made, number), (then, then))


def planned(made: Maker, days: float, **more: Any) -> tuple[list[int | None], list[str]]:
    plan = collecting.plan(made.store, timedelta(days=days).total_seconds(), now=NOW, **more)
    return [file_id(item.location) for item in plan.remove], [one.name for one in plan.kept_by]


@pytest.mark.parametrize(
    ("days", "gone"), [(4, []), (3, []), (2.9, [1]), (2, [1]), (1.9, [1, 2]), (0, [1, 2])]
)
def test_files_go_when_they_are_older_and_never_the_last(
    made: Maker, days: float, gone: list[int]
) -> None:
    aged(made)
    assert planned(made, days) == (gone, [])


def test_a_young_file_keeps_those_behind_it(made: Maker) -> None:
    aged(made)
    os.utime(path(made, 1), (NOW.timestamp(), NOW.timestamp()))
    assert planned(made, 1) == ([], [])


def test_files_that_a_reader_has_not_read_stay_and_it_is_named(made: Maker) -> None:
    aged(made)
    register(made.store, "lake", 2)
    register(made.store, "other", 3)
    register(made.store, "second", 2)
    assert planned(made, 0) == ([1], ["lake", "second"])
    assert planned(made, 2.5) == ([1], []), "age keeps the others"
    assert planned(made, 0, past_readers=True) == ([1, 2], [])


def test_an_archive_of_one_file_or_none_is_left_as_it_is(tmp_path: Path) -> None:
    maker = Maker(f"file://{tmp_path}/small")
    assert planned(maker, 0) == ([], [])
    maker.write()
    os.utime(path(maker, 1), (0, 0))
    assert planned(maker, 0) == ([], [])
    assert not (tmp_path / "small" / layout.CLOCK).exists(), "nobody asked for the time"


def test_a_registration_is_its_readers_next_file_until_it_ends(made: Maker) -> None:
    before = datetime.now(UTC)
    register(made.store, "lake", 2)
    register(made.store, "lake", 3)
    (reader,) = registered(made.store)
    assert (reader.name, reader.next_id) == ("lake", 3)
    assert before <= reader.at <= datetime.now(UTC)
    unregister(made.store, "lake")
    unregister(made.store, "lake")
    assert registered(made.store) == []


def test_other_objects_are_no_registrations_and_a_spoiled_one_is_an_error(made: Maker) -> None:
    for name in ("readers/note.txt", "readersx/a.json", "zzz/a.json"):
        made.store.put(name, b"{}")
    assert registered(made.store) == []
    for wrong in (b"", b"[]", b"{}", orjson.dumps({"next_id": 1, "at": "?"})):
        made.store.put("readers/lake.json", wrong)
        with pytest.raises(WalFileCorruptError, match=r"readers/lake\.json does not contain"):
            registered(made.store)


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("00000000000000000001.parquet", 1),
        ("12345678901234567890.parquet", 12_345_678_901_234_567_890),
        ("0000000000000000001.parquet", None),
        ("000000000000000000001.parquet", None),
        ("00000000000000000001", None),
        ("0000000000000000000x.parquet", None),
        ("0000000000000000000٣.parquet", None),
        ("x/00000000000000000001.parquet", None),
    ],
)
def test_only_a_name_of_twenty_digits_is_a_files(name: str, number: int | None) -> None:
    assert file_id(name) == number
    if number is not None:
        assert file_name(number) == name


def test_a_readers_name_is_part_of_an_objects_name() -> None:
    assert reader_name("a-B_1") == "readers/a-B_1.json"
    for wrong in ("", "a/b", "é", "a b", "a.b"):
        with pytest.raises(DecodeError, match="is not a valid reader name"):
            reader_name(wrong)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    made = Store(f"file://{tmp_path}" if request.param == "file" else "memory:///")
    made.put("a", b"0123456789")
    made.put("empty", b"")
    return made


REQUESTS = [
    (Get("a"), b"0123456789"),
    (Get("a", 4), b"6789"),
    (Get("a", 99), b"0123456789"),
    (ByteRange("a", 2, 5), b"234"),
    (Get("none"), None),
    (Get("none", 4), None),
    (ByteRange("none", 0, 1), None),
    (Get("empty"), b""),
]


@pytest.mark.parametrize(("request_", "data"), REQUESTS)
@pytest.mark.parametrize("tells_tail", [True, False])
async def test_both_ways_of_asking_give_the_same_bytes(
    store: Store, request_: Get | ByteRange, data: bytes | None, *, tells_tail: bool
) -> None:
    store.tells_tail = tells_tail
    for answer in (store.ask(request_), await store.ask_async(request_)):
        assert (None if answer is None else answer.data) == data
        if data is not None:
            assert answer.metadata.location == request_.name


async def test_both_ways_of_asking_describe_objects_and_list_them_in_order(store: Store) -> None:
    for answer in (store.ask(Head("a")), await store.ask_async(Head("a"))):
        assert (answer.location, answer.size) == ("a", 10)
    assert store.ask(Head("none")) is None
    assert await store.ask_async(Head("none")) is None
    for number in range(5):
        store.put(f"b{number}", b"")
    for request, names in (
        (Names(""), ["a", "b0", "b1", "b2", "b3", "b4", "empty"]),
        (Names("b1"), ["b2", "b3", "b4", "empty"]),
        (Names("b1", 2), ["b2", "b3"]),
        (Names("zzz", 2), []),
    ):
        for answer in (store.ask(request), await store.ask_async(request)):
            assert [item.location for item in answer] == names


@pytest.mark.parametrize("request_", [Get("empty", 4), ByteRange("empty", 0, 1)])
async def test_a_range_that_an_object_is_too_short_for_has_no_bytes(
    store: Store, request_: Get | ByteRange
) -> None:
    for answer in (store.ask(request_), await store.ask_async(request_)):
        assert (answer.data, answer.metadata.size) == (b"", 0)


def refusing(monkeypatch: pytest.MonkeyPatch, error: Exception, *names: str) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    async def refuse_async(*_: object, **__: object) -> None:
        raise error

    for name in names:
        monkeypatch.setattr(obstore, name, refuse_async if name.endswith("_async") else refuse)


async def test_a_refused_range_of_a_long_object_is_an_error(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(monkeypatch, exceptions.GenericError("busy\nmore"), "get", "get_async")
    for request in (Get("a", 4), ByteRange("a", 2, 5), Get("a")):
        with pytest.raises(ArchiveUnreachableError, match=r"/a: busy(\.|$| )"):
            store.ask(request)
        with pytest.raises(ArchiveUnreachableError, match="/a: busy"):
            await store.ask_async(request)


async def test_a_store_that_does_not_describe_an_object_is_out_of_reach(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(
        monkeypatch, exceptions.GenericError(""), "head", "head_async", "list", "put", "delete"
    )
    with pytest.raises(ArchiveUnreachableError, match="/a: GenericError"):
        store.ask(Head("a"))
    with pytest.raises(ArchiveUnreachableError, match="/a: GenericError"):
        await store.ask_async(Head("a"))
    with pytest.raises(ArchiveUnreachableError, match=", listed: GenericError"):
        store.ask(Names(""))
    with pytest.raises(ArchiveUnreachableError):
        store.put("a", b"")
    with pytest.raises(ArchiveUnreachableError):
        store.delete("a")


def test_an_object_is_created_once(store: Store) -> None:
    store.put_new("new", b"1")
    with pytest.raises(FileTakenError):
        store.put_new("new", b"2")
    assert store.ask(Get("new")).data == b"1"
    store.delete("new")
    store.delete("new")
    assert store.ask(Get("new")) is None


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, StoreFullError),
        (errno.EDQUOT, StoreFullError),
        (errno.EACCES, ArchiveUnreachableError),
    ],
)
def test_what_keeps_a_folder_from_taking_a_file_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[ArchiveError]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    folder = Store(f"file://{tmp_path}")
    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(ArchiveUnreachableError) as refused:
        folder.put_new(file_name(1), b"data")
    assert type(refused.value) is kind
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_on_disk_before_it_has_its_name_and_so_is_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    link, sync = os.link, os.fsync

    def linked(source: Path, target: Path) -> None:
        assert source.read_bytes() == b"data"
        calls.append("name")
        link(source, target)

    def synced(number: int) -> None:
        calls.append("folder" if Path(f"/proc/self/fd/{number}").is_dir() else "file")
        sync(number)

    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(os, "fsync", synced)
    Store(f"file://{tmp_path}").put_new(file_name(1), b"data")
    assert calls == ["file", "name", "folder"]


@pytest.mark.parametrize(
    ("options", "environ", "plain"),
    [
        ({}, {}, False),
        ({"endpoint": "http://there"}, {}, True),
        ({"endpoint": "https://there"}, {}, False),
        ({}, {"AWS_ENDPOINT_URL": "http://there"}, True),
        ({}, {"AWS_ENDPOINT": "http://there"}, True),
        ({"endpoint": "https://there"}, {"AWS_ENDPOINT": "http://other"}, False),
    ],
)
def test_only_an_endpoint_that_is_named_without_tls_is_used_without_it(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, str],
    environ: dict[str, str],
    *,
    plain: bool,
) -> None:
    opened: dict[str, Any] = {}
    monkeypatch.setattr(stores, "from_url", lambda url, **given: opened.update(given, url=url))
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    Store("s3://bucket/orders", options, timeout_s=7.0)
    assert opened["client_options"].get("allow_http", False) is plain
    assert opened["client_options"]["timeout"] == timedelta(seconds=7)
    assert opened["retry_config"]["max_retries"] == 0, "the caller retries"
    assert opened["config"] == (options or None)
    assert opened["url"] == "s3://bucket/orders"


def test_a_url_that_names_no_store_is_refused() -> None:
    with pytest.raises(ArchiveUnreachableError, match="the archive nowhere:/// can't be opened"):
        Store("nowhere:///")


def test_the_folder_of_a_new_archive_is_created(tmp_path: Path) -> None:
    Store(f"file://{tmp_path}/a/b").put_new(file_name(1), b"")
    assert (tmp_path / "a" / "b" / file_name(1)).exists()


def test_a_place_that_is_given_twice_is_refused(made: Maker) -> None:
    reader = WalReader(made.url)
    twice: list[dict[str, Any]] = [
        {"from_id": 1, "from_lsn": 1},
        {"from_lsn": 1, "after": Position(1, 1)},
    ]
    for places in twice:
        with pytest.raises(ArchiveError, match="more than one was given"):
            list(reader.follow(**places, wait=False))


async def test_a_file_that_does_not_follow_the_one_that_was_got_before_is_refused(
    made: Maker, tmp_path: Path
) -> None:
    other = Maker(f"file://{tmp_path}/other")
    for _ in range(3):
        other.write(30)
    path(made, 3).write_bytes(path(other, 3).read_bytes())
    reader = WalReader(made.url)
    reader.get(2)
    with pytest.raises(WalFileCorruptError, match="file 3"):
        reader.get(3)
    again = AsyncWalReader(made.url)
    await again.get(2)
    with pytest.raises(WalFileCorruptError, match="file 3"):
        await again.get(3)
    assert WalReader(made.url).get(3) is not None, "nothing before it was read"


async def test_readers_count_what_they_read(made: Maker) -> None:
    reader = WalReader(made.url, WalReaderOptions(tables=("public.items",)))
    assert len(list(reader.follow(wait=False))) == 30
    metrics = reader.metrics
    assert (metrics.files, metrics.rows, metrics.files_skipped) == (3, 30, 0)
    size = sum(path(made, number).stat().st_size for number in (1, 2, 3))
    assert metrics.bytes == size
    again = AsyncWalReader(made.url, WalReaderOptions(tables=("public.items",)))
    assert len([entry async for entry in again.follow(wait=False)]) == 30
    assert again.metrics == metrics
    nothing = WalReader(made.url, WalReaderOptions(tables=("public.none",)))
    assert list(nothing.follow(wait=False)) == []
    assert (nothing.metrics.files, nothing.metrics.files_skipped) == (0, 3)


def test_without_verification_changed_bytes_may_pass_and_with_it_never(made: Maker) -> None:
    data = bytearray(path(made, 2).read_bytes())
    data[2] ^= 1
    path(made, 2).write_bytes(data)
    with pytest.raises(WalFileCorruptError, match="file 2"):
        list(WalReader(made.url).follow(wait=False))
    assert len(list(WalReader(made.url, WalReaderOptions(verify=False)).follow(wait=False))) == 60


def test_a_file_knows_its_number_and_its_selection(made: Maker) -> None:
    file = WalReader(made.url).get(2)
    assert file is not None
    assert (file.id, file.next_id, file.info.rows) == (2, 3, 20)
    options = WalReaderOptions(tables=("public.orders",))
    chosen = WalReader(made.url, options).get(2)
    assert chosen is not None
    assert len(list(chosen)) == 10
    assert len(list(chosen.entries())) == 10


def test_a_collected_place_says_what_was_asked_for(made: Maker) -> None:
    made.write()
    for number in (1, 2):
        path(made, number).unlink()
    reader = WalReader(made.url)
    moment = datetime(1970, 1, 2, tzinfo=UTC)
    for place, match in (
        ({"from_lsn": 255}, r"back to 0/FF: file 3, the first one, starts at 0/1B8"),
        ({"from_time": moment}, "back to 1970-01-02.*files before 3 were removed"),
        ({"after": Position(300, 0)}, "does not reach back to"),
    ):
        with pytest.raises(WalFileCollectedError, match=match):
            list(reader.follow(**place, wait=False))
