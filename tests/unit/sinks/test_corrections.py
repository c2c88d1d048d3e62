"""A correction changes values only, and keeps each value's type."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.sinks.corrections import CorrectionError, corrected

ROW = {"id": 1, "name": "a", "n": 5, "price": "1.50", "on": True, "f": 0.5, "doc": {"a": 1.5}}
EVENT: dict[str, Any] = {
    "operation": "UPDATE",
    "key": ["id"],
    "data": {**ROW, "raw": b"x", "empty": None},
    "exact": {"doc": '{"a": 1.50}'},
    "tx": {"lsn": 5, "seq": 0},
}


def test_each_column_keeps_its_type_and_all_others_their_value() -> None:
    given = {"name": "b", "n": "9223372036854775807", "on": "false", "f": "1.25", "price": "2.00"}
    found = corrected(EVENT, given)
    wanted = {"name": "b", "n": 9223372036854775807, "on": False, "f": 1.25, "price": "2.00"}
    assert found == {**EVENT, "data": {**EVENT["data"], **wanted}}
    assert corrected(EVENT, {"name": None, "empty": "text"})["data"]["empty"] == "text"
    assert EVENT["data"]["name"] == "a"


def test_a_document_has_a_native_form_and_its_exact_text() -> None:
    found = corrected(EVENT, {"doc": '{"a": 2.50}'})
    assert found["data"]["doc"] == {"a": 2.5}
    assert found["exact"] == {"doc": '{"a": 2.50}'}
    assert "exact" not in corrected(EVENT, {"doc": None})


@pytest.mark.parametrize(
    "wanted",
    [{"id": "2"}, {"nosuch": "x"}, {"n": "one"}, {"on": "maybe"}, {"doc": "{"}, {"raw": "x"}],
)
def test_the_key_unknown_columns_and_values_of_another_type_are_refused(
    wanted: dict[str, str | None],
) -> None:
    with pytest.raises(CorrectionError) as caught:
        corrected(EVENT, wanted)
    assert "maybe" not in str(caught.value)


@pytest.mark.parametrize("more", [{"operation": "DELETE"}, {"data": {}}])
def test_a_record_without_a_row_has_nothing_to_correct(more: dict[str, Any]) -> None:
    with pytest.raises(CorrectionError):
        corrected({**EVENT, **more}, {"name": "b"})
