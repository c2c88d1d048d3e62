"""The commands of `headrace lake` on a lake in a folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.lake import requests
from headrace.lake.catalog import TableName
from headrace.lake.cleanup import UNUSED_KIND
from headrace.lake.errors import CutRefusedError
from headrace.lake.requests import RequestState
from tests.oracle.lake import ForeignLake
from tests.support.local_lake import NUMBERS, SLOT, LocalLake


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalLake:
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADRACE_SLOT", SLOT)
    monkeypatch.setenv("HEADRACE_LAKE_URL", f"file://{tmp_path}/lake")
    monkeypatch.setenv("PG_HOST", "127.0.0.1")
    monkeypatch.setenv("PG_PORT", "1")
    made = LocalLake(tmp_path / "lake")
    made.create()
    return made


def run(*arguments: str, fails: bool = False) -> str:
    result = CliRunner().invoke(app, ["lake", *arguments])
    assert (result.exit_code != 0) == fails, result.output
    return result.output


def documents(*arguments: str) -> list[Any]:
    return [json.loads(line) for line in run(*arguments, "--json").splitlines()]


def rows(lake: LocalLake) -> list[Any]:
    return sorted(ForeignLake(lake.folder).rows(str(NUMBERS)))


def make_old(lake: LocalLake) -> None:
    """As if all files had been written, and the last cut made, long after each other."""
    hour_ago = time.time() - 7200
    for location in lake.files_on_disk():
        os.utime(location.removeprefix("file://"), (hour_ago, hour_ago))


def test_ls_counts_living_rows(lake: LocalLake) -> None:
    lake.insert(range(100))
    lake.cut()
    lake.delete(range(7))
    lake.cut()
    (table,) = documents("ls")
    assert (table["table"], table["rows"], table["deleted_rows"]) == ("public.numbers", 93, 7)
    assert (table["files"], table["delete_files"], table["own"]) == (1, 1, True)
    assert "public.numbers" in run("ls")


def test_cuts_are_listed_from_the_last_one(lake: LocalLake) -> None:
    lake.insert_in_cuts(3)
    found = documents("cuts", "--limit", "2")
    assert [cut["number"] for cut in found] == [4, 3]
    assert found[0]["tables"].keys() == {"public.numbers"}
    assert "public.numbers" in run("cuts")


def test_status_says_what_it_can_t_know(lake: LocalLake) -> None:
    requests.ask(lake.catalog, SLOT, NUMBERS)
    (body,) = documents("status")
    assert body["cut"]["number"] == 1
    assert body["copies"] == [{"table": "public.numbers", "state": "waiting"}]
    assert len(body["unknown"]) == 2
    assert "public.numbers: waiting" in run("status")


def test_a_lake_that_does_not_exist_is_not_created(lake: LocalLake, tmp_path: Path) -> None:
    assert "does not exist" in run("ls", "--url", f"file://{tmp_path}/other", fails=True)
    assert not (tmp_path / "other").exists()
    (tmp_path / "empty").mkdir()
    place = ("--url", lake.files.root, "--catalog", f"sqlite://{tmp_path}/none.db")
    assert "does not exist" in run("ls", *place, fails=True)


def test_init_creates_a_lake_and_refuses_a_foreign_folder(tmp_path: Path) -> None:
    place = f"file://{tmp_path}/new"
    run("init", "--url", place)
    run("init", "--url", place)
    assert run("ls", "--url", place).startswith("0 tables")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "a.txt").write_text("mine")
    assert "not empty" in run("init", "--url", f"file://{tmp_path}/foreign", fails=True)
    assert [path.name for path in (tmp_path / "foreign").iterdir() if path.is_file()] == ["a.txt"]


def test_init_accepts_and_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    program = Path(sys.executable).with_name("headrace")
    command = [str(program), "lake", "init", "--url", f"file://{folder}"]
    settings = {"PATH": os.defpath, "HEADRACE_FAILPOINT": "lake_init.written"}
    killed = subprocess.run(command, env=settings, check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = folder.iterdir()
    # Names that no command made.
    others = [folder / "headrace-test-data", folder / f"{left.name}0"]
    # Another command may still need it.
    run("init", "--url", f"file://{folder}")
    assert left.exists()
    for file in others:
        file.write_text("test")
    for file in (left, *others):
        os.utime(file, (time.time() - 7200, time.time() - 7200))
    assert "headrace-test-data" in run("init", "--url", f"file://{folder}", fails=True)
    assert not left.exists()
    assert all(file.exists() for file in others)


def test_init_accepts_an_existing_lake(lake: LocalLake) -> None:
    before = lake.files_on_disk()
    assert documents("init") == [{"lake": lake.files.root, "tables": 1}]
    assert lake.files_on_disk() == before


def test_compact_joins_all_files_at_the_last_cut_s_lsn(lake: LocalLake) -> None:
    lake.insert_in_cuts(5)
    lake.delete([rows(lake)[0][0]])
    lake.cut()
    before = rows(lake)
    last = lake.catalog.last_cut(SLOT)
    assert last is not None
    (done,) = documents("compact")
    assert (done["files_before"], done["files_after"]) == (5, 1)
    assert rows(lake) == before
    cut = lake.catalog.last_cut(SLOT)
    assert cut is not None
    assert (cut.number, cut.lsn, cut.archive_file) == (
        last.number + 1,
        last.lsn,
        last.archive_file,
    )
    assert documents("compact")[0]["files_before"] == 0
    # A running writer starts again from that cut.
    lake.insert([1])
    with pytest.raises(CutRefusedError):
        lake.cut()
    lake.writer.open()
    lake.insert([1])
    lake.cut()
    assert len(rows(lake)) == len(before) + 1


def test_expired_files_are_orphans_when_they_are_old(lake: LocalLake) -> None:
    lake.insert_in_cuts(6)
    before = rows(lake)
    run("compact")
    assert documents("expire", "--keep-cuts", "1") == [{"snapshots_dropped": 7}]
    assert len(documents("cuts")) == 1
    assert documents("orphans")[0]["files"] == []
    make_old(lake)
    # A cut long after these files: nothing that is written now is among them.
    found = documents("orphans", "--older-than", "30m")[0]
    assert found["files"]
    assert not found["removed"]
    on_disk = lake.files_on_disk()
    assert set(found["files"]) < on_disk
    run("orphans", "--older-than", "30m", "--remove")
    assert lake.files_on_disk() == on_disk - set(found["files"])
    assert rows(lake) == before


def test_files_since_the_last_cut_are_no_orphans(lake: LocalLake) -> None:
    # Of a long copy, or of changes that wait for a cut.
    folder = lake.writer.snapshots[NUMBERS].metadata.location
    young = f"{folder}/data/0e5ee31c-8d80-4c4b-9d9f-5b0d9e8d0f5a.parquet"
    lake.files.put(young, b"rows")
    assert young not in documents("orphans", "--older-than", "0")[0]["files"]


def test_folders_of_dropped_tables_stay_for_their_time(
    lake: LocalLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.create(TableName("public", "others"), rows=3)
    lake.writer.drop(NUMBERS)
    lake.cut()
    make_old(lake)
    (found,) = documents("orphans", "--remove", "--older-than", "1s")
    assert (found["folders"], len(found["folders_kept"])) == ([], 1)
    monkeypatch.setenv("HEADRACE_LAKE_KEEP_DROPPED_S", "60")
    (folder,) = lake.catalog.notes(SLOT, UNUSED_KIND)
    lake.catalog.note(SLOT, UNUSED_KIND, folder, json.dumps({"since": time.time() - 61}))
    (found,) = documents("orphans", "--remove", "--older-than", "1s")
    assert found["folders"] == [folder]
    assert not any(location.startswith(folder) for location in lake.files_on_disk())
    assert len(ForeignLake(lake.folder).rows("public.others")) == 3


def test_a_request_for_a_copy_is_one_that_stays(lake: LocalLake) -> None:
    assert documents("backfill", "numbers", "--no-wait")[0]["state"] == "waiting"
    assert "is waiting" in run("backfill", "numbers", "--wait", "0", fails=True)
    request = requests.requests(lake.catalog, SLOT)[NUMBERS]
    assert request.state is RequestState.WAITING
    assert "public.numbers: waiting" in run("status")


def test_gc_does_all_of_it(lake: LocalLake) -> None:
    lake.insert_in_cuts(4)
    before = rows(lake)
    compacted, expired, removed = documents("gc")
    assert compacted["files_after"] == 1
    assert "snapshots_dropped" in expired
    assert removed["removed"]
    assert rows(lake) == before
