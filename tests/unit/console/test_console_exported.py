"""A file has every value as it is, and none that a spreadsheet would run."""

from __future__ import annotations

import csv
import io
import json

import pytest

from headrace.console.exported import event_line, file_of

HARMLESS = ["-5", "-12.50", "12345678901234567890", "plain", "a=b", " ", "0/16B3748+0", ""]
FORMULAS = [
    '=HYPERLINK("http://x","y")', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1",
    "\uff1d1", "-", "-cmd|' /C calc'!A0", "%0A",
]  # fmt: skip


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_that_is_no_formula_stays_as_it_is(text: str) -> None:
    (_, row) = csv.reader(io.StringIO(file_of("csv", ["v"], [[text, "x"]]).decode(), newline=""))
    assert row == [text, "x"]


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_becomes_a_text(text: str) -> None:
    (names, row) = csv.reader(io.StringIO(file_of("csv", [text], [[text]]).decode(), newline=""))
    assert names == row == [f"'{text}"]


@pytest.mark.parametrize("text", [*HARMLESS, *FORMULAS])
def test_ndjson_has_every_text_and_null_as_they_are(text: str) -> None:
    (line,) = file_of("ndjson", ["a", "a", "b"], [[text, None, text]]).splitlines()
    assert json.loads(line) == {"a": text, "a_2": None, "b": text}


def test_hidden_and_redacted_values_are_marked() -> None:
    def cell(kind: str, text: str | None = None) -> dict[str, str | None]:
        return {"kind": kind, "text": text}

    line = event_line(
        {
            "position": "0/1+0",
            "operation": "UPDATE",
            "schema": "public",
            "table": "users",
            "key": None,
            "columns": [
                {"name": "a", "before": cell("hidden"), "after": cell("redacted")},
                {"name": "b", "before": None, "after": cell("null")},
                {"name": "c", "before": None, "after": cell("text", "x")},
            ],
        }
    )
    assert line["before"] == {"a": "[hidden]"}
    assert line["after"] == {"a": "[redacted]", "b": None, "c": "x"}
