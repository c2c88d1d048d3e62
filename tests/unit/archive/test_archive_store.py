"""A store that could overwrite a file is refused; the remains of killed processes are removed; age
is measured by the store's own clock.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.archive import collect as collecting
from headrace.archive.errors import FileTakenError, StoreFullError, StoreUnfitError
from headrace.archive.layout import ONCE, file_name
from headrace.archive.mark import ArchiveMark
from headrace.archive.store import DRAFT_AGE_S, Head, Store
from headrace.archiver.resume_point import ArchiveVanishedError, resume_point
from headrace.bus.frame import Opening
from headrace.lsn import Gap
from tests.support.archive_maker import Maker


class CarelessStore(Store):
    """As some S3 servers are: they accept the condition, and overwrite the object anyway."""

    def put_new(self, name: str, data: bytes) -> None:
        self.put(name, data)


class ClockedStore(Store):
    """A store whose clock is another than this machine's."""

    clock = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.clock


def test_a_store_that_ignores_conditions_is_refused() -> None:
    with pytest.raises(StoreUnfitError, match="created twice"):
        CarelessStore("memory:///").prepare()


def test_a_store_with_conditional_puts_is_taken_every_time() -> None:
    store = Store("memory:///")
    for _ in range(3):
        store.prepare()
    assert store.ask(Head(ONCE)) is not None
    store.put_new("a", b"first")
    with pytest.raises(FileTakenError):
        store.put_new("a", b"second")


def test_a_full_disk_is_reported_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(f"file://{tmp_path}")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreFullError, match=r"No space left on device\. Free disk space"):
        store.put_new(file_name(1), b"a file")
    assert not list(tmp_path.iterdir()), "no draft takes the room that is missing"


WITHOUT = "import sys; from headrace.cli.entry import main; sys.modules['pyarrow'] = None; "


@pytest.mark.parametrize(
    "code",
    [
        "from headrace.archive import WalReader",
        "sys.argv[1:] = ['archive', 'ls', '--url', 'file:///tmp']; main()",
        "sys.argv[1:] = ['replay', '--into', 'sqlite:///x.db', '--url', 'file:///tmp']; main()",
    ],
)
def test_without_the_extra_the_error_names_it(code: str, tmp_path: Path) -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", WITHOUT + code],
        # The second try after an installation, which this environment would otherwise begin.
        env={**os.environ, "_HEADRACE_INSTALLED": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert outcome.returncode == 1
    assert "pip install 'headrace[archive]'" in outcome.stderr.splitlines()[-1]
    assert "During handling" not in outcome.stderr


def test_drafts_that_a_kill_left_go_and_those_at_work_stay(tmp_path: Path) -> None:
    made = Maker(f"file://{tmp_path}")
    made.write()
    left, young = (tmp_path / f".{file_name(number)}.00ff" for number in (2, 3))
    for draft in (left, young):
        draft.write_bytes(b"half a file")
    then = time.time() - DRAFT_AGE_S - 60
    os.utime(left, (then, then))
    os.utime(tmp_path / file_name(1), (then, then))
    made.store.prepare()
    assert not left.exists()
    assert young.exists()
    assert (tmp_path / file_name(1)).exists()


def test_a_machine_whose_clock_is_years_ahead_collects_nothing_that_is_young(
    tmp_path: Path,
) -> None:
    made = Maker(f"file://{tmp_path}")
    for _ in range(3):
        made.write()
    store = ClockedStore(made.url)
    for number in range(1, 4):
        then = (store.clock - timedelta(days=4 - number)).timestamp()
        os.utime(tmp_path / file_name(number), (then, then))
    planned = collecting.plan(store, timedelta(days=2.5).total_seconds())
    assert [item.location for item in planned.remove] == [file_name(1)]
    assert abs(made.store.now() - datetime.now(UTC)) < timedelta(minutes=5)


def opening_at(confirmed_lsn: int) -> Opening:
    return Opening({}, "headrace", "db", system_id="1", timeline=1, confirmed_lsn=confirmed_lsn)


def test_a_gap_begins_behind_what_the_archive_has_and_ends_before_what_the_slot_has(
    tmp_path: Path,
) -> None:
    info = Maker(f"file://{tmp_path}").write()
    assert (info.last.lsn, info.end_lsn) == (200, 201)
    place = resume_point(info, ArchiveMark("", 0, 0, ""), "file:///a", "headrace")
    assert place.gap_before(opening_at(201)) is None
    assert place.gap_before(opening_at(300)) == Gap(201, 300, "slot_moved")
    # It ends in the middle of a transaction; everything before the transaction is stored.
    cut = resume_point(
        replace(info, whole=False, end_lsn=101), ArchiveMark("", 0, 0, ""), "file:///a", "headrace"
    )
    assert cut.gap_before(opening_at(200)) is None, (
        "the transaction comes again, and its rows are known by position"
    )
    assert cut.gap_before(opening_at(300)) == Gap(200, 300, "slot_moved")


def test_an_archive_that_had_files_and_has_none_is_not_begun_anew() -> None:
    mark = ArchiveMark("a", 7, 1000, "file:///archive")
    with pytest.raises(ArchiveVanishedError, match="had file 7"):
        resume_point(None, mark, "file:///archive", "headrace")
    assert resume_point(None, mark, "file:///elsewhere", "headrace").next_id == 1
    idle = resume_point(
        None, ArchiveMark("a", 0, 1000, "file:///archive"), "file:///archive", "headrace"
    )
    assert (idle.archive, idle.known_lsn, idle.next_id) == ("a", 1000, 1)
