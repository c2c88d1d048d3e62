"""The settings of `headrace up --lake`, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.up import lake
from headrace.cli.up.lake import with_archive
from headrace.errors import SettingError
from headrace.extras import MissingPackageError


def test_without_a_lake_nothing_changes(tmp_path: Path) -> None:
    assert with_archive({"HEADRACE_SLOT": "s"}, tmp_path) == {"HEADRACE_SLOT": "s"}


def test_a_lake_gets_a_required_archive_in_the_folder(tmp_path: Path) -> None:
    found = with_archive({"HEADRACE_LAKE_URL": "file:///lake"}, tmp_path)
    assert found["HEADRACE_ARCHIVE_URL"] == f"file://{tmp_path}/archive"
    assert found["HEADRACE_ARCHIVE_REQUIRED"] == "true"


def test_an_archive_that_is_given_stays_as_it_is(tmp_path: Path) -> None:
    given = {"HEADRACE_LAKE_URL": "file:///lake", "HEADRACE_ARCHIVE_URL": "s3://bucket/log"}
    assert with_archive(given, tmp_path) == given
    optional = {"HEADRACE_LAKE_URL": "file:///lake", "HEADRACE_ARCHIVE_REQUIRED": "false"}
    assert with_archive(optional, tmp_path)["HEADRACE_ARCHIVE_REQUIRED"] == "false"


@pytest.mark.parametrize(
    ("url", "catalog", "reason"),
    [
        ("lake", "", "HEADRACE_LAKE_URL=lake is not the URL of a folder or a bucket"),
        ("ftp://lake", "", "is not the URL of a folder or a bucket"),
        ("file:///a%20lake", "", "HEADRACE_LAKE_URL=file:///a%20lake contains %"),
        ("s3://bucket/lake", "", "HEADRACE_LAKE_CATALOG is not set"),
        (
            "s3://bucket/lake",
            "mysql://me:secret@host/x",
            "HEADRACE_LAKE_CATALOG starts with mysql:",
        ),
        ("file:///lake", "catalog.db", "HEADRACE_LAKE_CATALOG starts with catalog.db:"),
    ],
)
def test_a_wrong_place_is_refused_with_its_reason(
    tmp_path: Path, url: str, catalog: str, reason: str
) -> None:
    given = {"HEADRACE_LAKE_URL": url, "HEADRACE_LAKE_CATALOG": catalog}
    with pytest.raises(SettingError) as refused:
        with_archive(given, tmp_path)
    assert reason in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_missing_package_is_named_with_the_extra_that_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake, "find_spec", lambda name: None if name == "pyiceberg" else object())
    with pytest.raises(MissingPackageError) as refused:
        with_archive({"HEADRACE_LAKE_URL": "file:///lake"}, tmp_path)
    assert "pyiceberg" in str(refused.value)
    assert "headrace[lake]" in str(refused.value)
