"""The line of `headrace doctor` about base snapshots."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from headrace.archive.bases import BaseRecord, Bases
from headrace.archive.layout import base_record
from headrace.cli.doctor import archive
from headrace.cli.doctor.checks import Check, CheckState, Findings
from headrace.settings import load
from tests.support.archive_maker import Maker, table_info

DAY_S = 86_400


def base(made: Maker, table: str, age_days: float) -> None:
    now_us = int(time.time() * 1_000_000)
    time_us = now_us - int(age_days * DAY_S * 1_000_000)
    name = f"{table}-{time_us}"
    Bases(made.store).complete(
        BaseRecord(name, "made", "headrace", "1", table_info(table), time_us, time_us, 1, 0, ())
    )


def check(made: Maker, keep_s: int | None) -> list[Check]:
    environment = {"HEADRACE_ARCHIVE_URL": made.url}
    if keep_s is not None:
        environment["HEADRACE_ARCHIVE_KEEP_S"] = str(keep_s)
    findings = Findings("Archive", [])
    asyncio.run(archive.examine_bases(load(environment), made.url, findings))
    return findings.checks


@pytest.fixture
def made(tmp_path: Path) -> Maker:
    return Maker.with_files(tmp_path, 1)


def test_without_bases_it_warns_only_where_old_files_are_removed(made: Maker) -> None:
    assert check(made, None) == []
    [found] = check(made, DAY_S)
    assert found.state is CheckState.WARN
    assert "no table has a base" in found.found


def test_the_oldest_of_the_tables_newest_bases_is_shown(made: Maker) -> None:
    for table, age in (("orders", 9), ("orders", 1), ("items", 3)):
        base(made, table, age)
    [found] = check(made, None)
    assert found.state is CheckState.OK
    assert "tables with a base: 2; the oldest is of public.items" in found.found
    assert check(made, 2 * DAY_S)[0].state is CheckState.OK
    [found] = check(made, DAY_S)
    assert found.state is CheckState.WARN
    assert "keeps all files since then" in found.found


def test_a_damaged_record_is_a_warning_and_no_crash(made: Maker) -> None:
    made.store.put(base_record("broken"), b"{}")
    [found] = check(made, None)
    assert (found.state, found.found) == (CheckState.WARN, "can't be read")
