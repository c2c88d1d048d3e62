"""COPY … TO STDOUT of Arrow columns has the bytes that PostgreSQL sends for the same values."""

from __future__ import annotations

from random import Random

import psycopg
import pyarrow as pa
import pytest

from headrace.sql import wire
from headrace.sql.copy_to_stdout import BINARY_HEADER, BINARY_TRAILER, begun_with, copy_form
from headrace.sql.errors import NotProvenEqualError
from headrace.sql.result_rows import RowMessages
from headrace.sql.storage_types import TEXT_OID
from headrace.sql.wire import WireColumn
from headrace.testing.servers import SessionServers

ROWS = 400
PIECES = ("a", "\\", "\\.", "\t", "\n", "\r", "\b", "\f", "\v", "|", '"', "'", ",", ";", "é", "日", "\\N", "N", "none", " ")  # fmt: skip
OPTIONS = (
    "",
    "(DELIMITER '|', NULL 'none')",
    "(DELIMITER 'N', NULL 'x')",
    "(FORMAT csv)",
    "(FORMAT csv, DELIMITER ';', QUOTE '''', ESCAPE '\\', NULL 'none')",
    "(FORMAT csv, DELIMITER '|', QUOTE 'a', ESCAPE '\"')",
    "(FORMAT binary)",
)

# Literals, and whether they are read if plain literals have escapes, and if they have none.
LITERALS = (
    ("''", True, True),
    ("'it''s'", True, True),
    (r"'\N'", False, True),
    (r"'\\N'", True, True),
    (r"'\t'", True, True),
    (r"'\\\\'", True, True),
    (r"E'\\N'", True, True),
    (r"E'it''s\t'", True, True),
    (r"E'\N'", False, False),
    (r"E'it\'s'", False, False),
    (r"E'\x41'", False, False),
    ("'a'\n 'b'", False, False),
    ("'a'\n''", False, False),
)


@pytest.mark.parametrize(("literal", "escaping", "standard"), LITERALS)
@pytest.mark.parametrize("strings", ["off", "on"])
def test_a_literal_has_the_value_that_postgresql_reads_or_is_refused(
    session_servers: SessionServers, literal: str, strings: str, *, escaping: bool, standard: bool
) -> None:
    options = f"(FORMAT csv, NULL {literal})"
    with psycopg.connect(session_servers.shared_postgres(18).dsn(), autocommit=True) as oracle:
        oracle.execute(f"SET standard_conforming_strings = {strings}".encode())
        with oracle.cursor().copy(f"COPY (SELECT NULL, 1) TO STDOUT {options}".encode()) as copy:
            expected = [bytes(each) for each in copy]
    is_standard = strings == "on"
    if standard if is_standard else escaping:
        form = copy_form(options.encode(), standard_strings=is_standard)
        assert [form.line([None, b"1"])] == expected
    else:
        with pytest.raises(NotProvenEqualError):
            copy_form(options.encode(), standard_strings=is_standard)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("columns", [1, 3])
def test_hostile_texts_are_copied_as_postgresql_copies_them(
    session_servers: SessionServers, options: str, columns: int
) -> None:
    random = Random(f"{options} {columns}")
    rows = [[_text(random) for _ in range(columns)] for _ in range(ROWS)]
    names = ", ".join(f"c{number}" for number in range(columns))
    with psycopg.connect(session_servers.shared_postgres(18).dsn(), autocommit=True) as oracle:
        listed = ", ".join(f"c{number} text" for number in range(columns))
        oracle.execute(f"CREATE TEMPORARY TABLE hostile ({listed})".encode())
        with oracle.cursor().copy(b"COPY hostile FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        text = f"COPY (SELECT {names} FROM hostile) TO STDOUT {options}"
        with oracle.cursor().copy(text.encode()) as copy:
            expected = [bytes(each) for each in copy]
    form = copy_form(options.encode())
    formats = [int(form.form == "binary")] * columns
    batch = pa.table({f"c{n}": pa.array([row[n] for row in rows]) for n in range(columns)})
    column = WireColumn(b"c", 0, 0, TEXT_OID, -1, -1)
    messages = RowMessages([column] * columns, formats, copy=form).of(batch)
    if form.form == "binary":
        messages = begun_with(BINARY_HEADER, messages) + wire.frame(b"d", BINARY_TRAILER)
    assert _bodies(messages) == expected


def _text(random: Random) -> str | None:
    if random.random() < 0.1:
        return None
    return "".join(random.choices(PIECES, k=random.choice((0, 1, 1, 2, 5))))


def _bodies(messages: bytes) -> list[bytes]:
    found = []
    while messages:
        kind, length = wire.header(messages[: wire.HEADER_BYTES], len(messages))
        assert kind == b"d"
        end = wire.HEADER_BYTES + length
        found.append(messages[wire.HEADER_BYTES : end])
        messages = messages[end:]
    return found
