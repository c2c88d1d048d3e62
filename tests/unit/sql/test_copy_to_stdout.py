"""COPY's options are read, and its rows are written, as PostgreSQL does."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from headrace.sql import wire
from headrace.sql.copy_to_stdout import copy_data, copy_form, copy_lines
from headrace.sql.errors import NotProvenEqualError

ROWS: Sequence[tuple[bytes, list[bytes | None], bytes]] = [
    (b"", [b"a\tb\\", None, b"", b"x\ny\r\b\f\v"], b"a\\tb\\\\\t\\N\t\tx\\ny\\r\\b\\f\\v\n"),
    (b"WITH (DELIMITER '|', NULL 'none')", [b"a|b", None], b"a\\|b|none\n"),
    (b"(FORMAT csv)", [b"a,b", None, b"", b'q"q', b"x"], b'"a,b",,"","q""q",x\n'),
    (b"WITH CSV HEADER DELIMITER AS ';' QUOTE ''''", [b"a;'b", b"c"], b"'a;''b';c\n"),
    (b"(FORMAT 'csv', ESCAPE '!', HEADER true)", [b'a"!b'], b'"a!"!!b"\n'),
    (b"(FORMAT csv)", [b"\\."], b'"\\."\n'),
    (b"(FORMAT csv, NULL 'x')", [b"x", None], b'"x",x\n'),
    (b"DELIMITER E'\\t' NULL '\\N'", [None, b"a"], b"\\N\ta\n"),
    (b"(NULL E'it''s \\\\N')", [None], b"it's \\N\n"),
]


@pytest.mark.parametrize(("options", "values", "expected"), ROWS)
def test_a_row_is_written_as_the_options_say(
    options: bytes, values: list[bytes | None], expected: bytes
) -> None:
    assert copy_form(options).line(values) == expected


@pytest.mark.parametrize(("options", "values", "expected"), ROWS)
def test_columns_are_written_as_single_rows(
    options: bytes, values: list[bytes | None], expected: bytes
) -> None:
    cells = [pa.array([b"other", value], pa.binary())[1:] for value in values]
    assert copy_lines(copy_form(options), cells, 1).to_pylist() == [expected]


def test_binary_rows_are_those_of_the_protocol() -> None:
    row = wire.data_row([b"\0\0\0\1", None])
    assert copy_data(copy_form(b"(FORMAT binary)"), row + row) == (b"d" + row[1:]) * 2


@pytest.mark.parametrize(
    "options",
    [b"(FORCE_QUOTE *)", b"(ENCODING 'latin1')", b"(FORMAT json)", b"(NULL E'\\x01')", b"(FOO)"],
)
def test_an_option_that_would_change_values_in_another_way_is_refused(options: bytes) -> None:
    with pytest.raises(NotProvenEqualError):
        copy_form(options)
