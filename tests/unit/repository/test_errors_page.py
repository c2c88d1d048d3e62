"""docs/errors.md is current, and says of each error what it means."""

from __future__ import annotations

from pathlib import Path

from tests.support.error_names import error_names, page

ROOT = Path(__file__).parents[3]


def test_the_page_of_errors_is_up_to_date() -> None:
    assert (ROOT / "docs/errors.md").read_text() == page(), "run ./taskw docs:errors"


def test_every_error_has_a_meaning_and_a_name_of_its_own() -> None:
    errors = error_names()
    assert [each.name for each in errors if not each.meaning] == []
    names = [each.name for each in errors]
    assert sorted({name for name in names if names.count(name) > 1}) == []
