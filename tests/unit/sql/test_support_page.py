"""docs/sql-support.md is current, and names each feature once."""

from __future__ import annotations

from pathlib import Path

from tests.support.sql_features import FEATURES, page

ROOT = Path(__file__).parents[3]


def test_the_page_of_supported_sql_is_up_to_date() -> None:
    assert (ROOT / "docs/sql-support.md").read_text() == page(), "run ./taskw docs:sql"


def test_every_feature_has_a_name_of_its_own() -> None:
    names = [feature.name for features in FEATURES.values() for feature in features]
    assert len(set(names)) == len(names)
