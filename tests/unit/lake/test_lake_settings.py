"""Settings that can't be a lake's are refused before anything is opened."""

from __future__ import annotations

import pytest

from headrace.errors import SettingError
from headrace.lake.opening import check_lake
from headrace.settings import load

ARCHIVE = {"HEADRACE_ARCHIVE_URL": "s3://bucket/archive"}
BUCKET = {**ARCHIVE, "HEADRACE_LAKE_URL": "s3://bucket/lake"}
SECRET = "pass-word"


@pytest.mark.parametrize(
    ("environment", "message", "remedy"),
    [
        (ARCHIVE, "HEADRACE_LAKE_URL is not set", "a folder"),
        ({**ARCHIVE, "HEADRACE_LAKE_URL": "lake"}, "HEADRACE_LAKE_URL=lake", "a folder"),
        ({"HEADRACE_LAKE_URL": "file:///lake"}, "HEADRACE_ARCHIVE_URL is not set", "archive"),
        (BUCKET, "HEADRACE_LAKE_CATALOG is not set", "postgresql://"),
        ({**BUCKET, "HEADRACE_LAKE_CATALOG": "mysql://host/db"}, "mysql:", "postgresql://"),
        (
            {**BUCKET, "HEADRACE_LAKE_CATALOG": f"postgresql://me:{SECRET}%zz@host/db"},
            "HEADRACE_LAKE_CATALOG is not an address of PostgreSQL",
            "percent-encoded",
        ),
    ],
)
def test_a_setting_that_can_not_be_a_lakes_is_named(
    environment: dict[str, str], message: str, remedy: str
) -> None:
    with pytest.raises(SettingError) as raised:
        check_lake(load(environment))
    assert message in str(raised.value)
    assert remedy in raised.value.remedy
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "environment",
    [
        {**ARCHIVE, "HEADRACE_LAKE_URL": "file:///lake"},
        {**BUCKET, "HEADRACE_LAKE_CATALOG": "sqlite:///catalog.db"},
        {
            **BUCKET,
            "HEADRACE_LAKE_CATALOG": f"postgresql://me:{SECRET}@host:5433/db?sslmode=require",
        },
        {**BUCKET, "HEADRACE_LAKE_CATALOG": "postgres://host/db"},
    ],
)
def test_settings_of_a_lake_are_accepted(environment: dict[str, str]) -> None:
    check_lake(load(environment))
