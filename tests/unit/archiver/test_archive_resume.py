"""The archive's end, from its last file and the mark; and the changes that neither has."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.archive import file_format
from headrace.archive.errors import ArchiveError, WalFileCorruptError
from headrace.archive.layout import file_name
from headrace.archive.mark import ArchiveMark
from headrace.archive.metadata import WalFileInfo
from headrace.archive.store import Get, Names, ObjectMetadata, Request, Store
from headrace.archiver import resume_point as resuming
from headrace.archiver.builder import Begun
from headrace.archiver.resume_point import (
    ArchiveDivergedError,
    ArchiveEnd,
    last_info,
    resume_point,
)
from headrace.bus.frame import Opening
from headrace.lsn import ORIGIN, Position
from tests.support.archive_maker import Maker

URL = "file:///archive"
NO_MARK = ArchiveMark("", 0, 0, "")


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    return Maker.with_files(tmp_path, 3)


def info(made: Maker) -> WalFileInfo:
    assert made.info is not None
    return made.info


class Watched(Store):
    """Notes what it is asked for, and can show objects that do not exist."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[Request] = []
        self.shown: list[ObjectMetadata] = []

    def ask(self, request: Request) -> Any:
        self.asked.append(request)
        found = super().ask(request)
        if isinstance(request, Names):
            return [*found, *self.shown]
        return found


def test_the_last_file_says_where_the_archive_ends(made: Maker) -> None:
    found = last_info(made.store)
    assert found == info(made)
    assert (found.id, found.last) == (3, Position(600, 9))


def test_an_empty_archive_has_no_last_file(tmp_path: Path) -> None:
    assert last_info(Store(f"file://{tmp_path}")) is None
    assert last_info(Store(f"file://{tmp_path}"), hint=7) is None


def test_a_search_begins_at_the_file_that_is_known_and_looks_at_all_if_there_is_none(
    made: Maker,
) -> None:
    store = Watched(made.url)
    assert last_info(store, hint=2) == info(made)
    assert store.asked[0] == Names(file_name(1)), "from file 2 on"
    store.asked.clear()
    assert last_info(store, hint=3) == info(made)
    assert store.asked[0] == Names(file_name(2)), "from file 3 on, which may be the last"
    store.asked.clear()
    assert last_info(store, hint=9) == info(made)
    assert store.asked[:2] == [Names(file_name(8)), Names(file_name(0))]


def test_other_objects_beside_the_files_are_no_files(made: Maker) -> None:
    Path(made.url.removeprefix("file://"), "zzz.txt").write_text("a note")
    assert last_info(made.store) == info(made)


def test_a_footer_that_does_not_fit_the_first_request_is_fetched_with_its_file(
    made: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = file_name(3)
    data = Path(made.url.removeprefix("file://"), name).read_bytes()
    need = file_format.footer_bytes(data) + file_format.SEAL_BYTES
    for size, requests in ((need, 1), (need - 1, 2)):
        monkeypatch.setattr(resuming, "_TAIL_BYTES", size)
        store = Watched(made.url)
        assert last_info(store) == info(made)
        fetched = [request for request in store.asked if isinstance(request, Get)]
        assert fetched == [Get(name, size), Get(name)][:requests]


def test_a_last_file_that_went_meanwhile_ends_the_run(made: Maker) -> None:
    store = Watched(made.url)
    store.shown = [ObjectMetadata(file_name(4), 1, datetime(2026, 1, 1, tzinfo=UTC))]
    with pytest.raises(ArchiveError, match=r"file 4 .* disappeared"):
        last_info(store)


def test_a_copy_of_another_file_is_not_continued(made: Maker) -> None:
    folder = Path(made.url.removeprefix("file://"))
    (folder / file_name(4)).write_bytes((folder / file_name(2)).read_bytes())
    with pytest.raises(WalFileCorruptError, match="its content is that of file 2"):
        last_info(made.store)


def test_a_new_archive_begins_at_its_first_file_with_an_identity_of_its_own() -> None:
    first = resume_point(None, NO_MARK, URL, "headrace")
    second = resume_point(None, NO_MARK, URL, "headrace")
    assert (first.known_lsn, first.next_id, first.epoch, first.info) == (0, 1, 1, None)
    assert len(first.archive) == 16
    assert first.archive != second.archive
    assert first.begun() == Begun(ORIGIN, 0)


def test_an_archive_continues_behind_its_last_file_in_a_higher_epoch(made: Maker) -> None:
    last = replace(info(made), epoch=4, versions={"t": (2, "shape")})
    end = resume_point(last, NO_MARK, URL, "headrace")
    assert end == ArchiveEnd("made", last, 601, next_id=4, epoch=5)
    assert end.begun() == Begun(Position(600, 9), 601, last.time_us, last.versions)


@pytest.mark.parametrize(
    ("mark", "known_lsn"),
    [
        (ArchiveMark("made", 3, 900, URL), 900),
        (ArchiveMark("made", 3, 600, URL), 601),
        (ArchiveMark("made", 2, 900, URL), 601),
        (ArchiveMark("another", 3, 900, URL), 601),
    ],
    ids=["of this file", "older than its file", "of another file", "of another archive"],
)
def test_a_mark_counts_only_for_the_file_that_it_was_written_behind(
    made: Maker, mark: ArchiveMark, known_lsn: int
) -> None:
    assert resume_point(info(made), mark, URL, "headrace").known_lsn == known_lsn


def test_the_archive_of_another_source_is_not_continued(made: Maker) -> None:
    with pytest.raises(ArchiveDivergedError, match="belongs to the source headrace, not to other"):
        resume_point(info(made), NO_MARK, URL, "other")


def opening(**fields: Any) -> Opening:
    known = {"system_id": "1", "timeline": 1, "confirmed_lsn": 700}
    return Opening({}, "headrace", "db", **{**known, **fields})


def test_only_the_server_whose_changes_the_archive_has_continues_it(made: Maker) -> None:
    end = resume_point(info(made), NO_MARK, URL, "headrace")
    end.check_source(opening())
    with pytest.raises(ArchiveDivergedError, match="the archive's is 1"):
        end.check_source(opening(system_id="2"))
    with pytest.raises(ArchiveDivergedError, match="before 0/258, where the archive is"):
        end.check_source(opening(current_lsn=599))
    ArchiveEnd("a", None, 0).check_source(opening(system_id="2"))


def test_an_archive_that_has_not_begun_misses_nothing(made: Maker) -> None:
    assert ArchiveEnd("a", None, 0).gap_before(opening()) is None
    cut = replace(info(made), whole=False)
    assert ArchiveEnd("a", cut, 0).gap_before(opening()) is None
    idle = ArchiveEnd("a", None, 650).gap_before(opening())
    assert idle is not None
    assert (idle.after, idle.up_to) == (650, 700)


def test_a_mark_is_read_as_it_was_written_and_none_is_empty() -> None:
    mark = ArchiveMark("made", 3, 900, URL)
    assert mark.encode() == {"archive": "made", "file": 3, "lsn": 900, "url": URL}
    assert ArchiveMark.of(mark.encode()) == mark
    assert ArchiveMark.of(None) == ArchiveMark.of({}) == NO_MARK
