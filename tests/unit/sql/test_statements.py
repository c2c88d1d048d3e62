"""The scanner divides a text as PostgreSQL does, and finds the queries inside statements."""

from __future__ import annotations

import pytest

from headrace.sql.statements import (
    CloseCursor,
    CopyOut,
    Declare,
    Explain,
    Fetch,
    Prepare,
    Run,
    split,
    utility_of,
)


def pieces(text: str, *, standard_strings: bool = True) -> list[str]:
    return [
        piece.text.decode().strip()
        for piece in split(text.encode(), standard_strings=standard_strings)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" ; -- nothing\n ; /* ; */", []),
        ("SELECT 1", ["SELECT 1"]),
        ("SELECT 1; SELECT 2;", ["SELECT 1", "SELECT 2"]),
        ("SELECT ';'; SELECT 2", ["SELECT ';'", "SELECT 2"]),
        ("SELECT 'it''s;'; SELECT 2", ["SELECT 'it''s;'", "SELECT 2"]),
        ("SELECT E'\\';'; SELECT 2", ["SELECT E'\\';'", "SELECT 2"]),
        ("SELECT '\\'; SELECT 2", ["SELECT '\\'", "SELECT 2"]),
        ('SELECT ";"; SELECT 2', ['SELECT ";"', "SELECT 2"]),
        ('SELECT U&"d;" ";"; SELECT 2', ['SELECT U&"d;" ";"', "SELECT 2"]),
        ("SELECT $$;$$; SELECT 2", ["SELECT $$;$$", "SELECT 2"]),
        ("SELECT $a$ ; $b$ ; $a$; SELECT 2", ["SELECT $a$ ; $b$ ; $a$", "SELECT 2"]),
        ("SELECT a$b$; SELECT $b$ 1", ["SELECT a$b$", "SELECT $b$ 1"]),
        ("SELECT $1; SELECT 2", ["SELECT $1", "SELECT 2"]),
        ("SELECT /* ; /* ; */ ; */ 1; SELECT 2", ["SELECT /* ; /* ; */ ; */ 1", "SELECT 2"]),
        ("SELECT 1 -- ;\n; SELECT 2", ["SELECT 1 -- ;", "SELECT 2"]),
        ("SELECT 1+--;\n2; SELECT 2", ["SELECT 1+--;\n2", "SELECT 2"]),
        ("SELECT E'a'\n  '\\';'; SELECT 2", ["SELECT E'a'\n  '\\';'", "SELECT 2"]),
        ("SELECT 'a' '\\'; SELECT 2", ["SELECT 'a' '\\'", "SELECT 2"]),
        ("CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2); SELECT 3",
         ["CREATE RULE r AS ON INSERT TO t DO (SELECT 1; SELECT 2)", "SELECT 3"]),
        ("CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 1 END; END; SELECT 3",
         ["CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT CASE WHEN true THEN 1 END; END", "SELECT 3"]),
        ("BEGIN; SELECT 1; END; SELECT 2", ["BEGIN", "SELECT 1", "END", "SELECT 2"]),
        ("SELECT 'open; SELECT 2", ["SELECT 'open; SELECT 2"]),
        ("SELECT 'ä;ö'; SELECT 'ü'", ["SELECT 'ä;ö'", "SELECT 'ü'"]),
    ],
)  # fmt: skip
def test_a_text_is_divided_where_postgresql_divides_it(text: str, expected: list[str]) -> None:
    assert pieces(text) == expected


@pytest.mark.parametrize(
    "run", ["\n" + " " * 40_000, "--" * 20_000 + "\n", "\n" + "--\n" * 10_000], ids=str.__len__
)
def test_what_may_continue_a_literal_is_read_once(run: str) -> None:
    # Tried in every division, 40 spaces take longer than anybody waits.
    text = f"SELECT 'a'{run}END; SELECT 2"
    assert len(split(text.encode())) == 2
    assert len(split(f"SELECT 'a'\n{run}'; SELECT 2'".encode())) == 1


def test_a_backslash_escapes_in_plain_literals_if_the_session_says_so() -> None:
    assert pieces("SELECT '\\'; SELECT 2'", standard_strings=False) == ["SELECT '\\'; SELECT 2'"]


def test_a_piece_knows_its_first_word_and_its_place() -> None:
    found = split(b"/* x */ select 1; (SELECT 2); Begin")
    assert [piece.keyword for piece in found] == ["SELECT", "", "BEGIN"]
    assert [piece.start for piece in found] == [0, 17, 29]


def utility(text: str) -> object:
    (piece,) = split(text.encode())
    return utility_of(piece)


@pytest.mark.parametrize(
    ("text", "query", "to_client", "options"),
    [
        ("COPY (SELECT 1) TO STDOUT", b"SELECT 1", True, b""),
        ("copy (select ')' from (table t) u) to stdout with (format csv)", b"select ')' from (table t) u", True, b"with (format csv)"),
        ("COPY t TO STDOUT", b"SELECT * FROM t", True, b""),
        ('COPY "A b"."t" (a, "B") TO STDOUT CSV', b'SELECT a, "B" FROM "A b"."t"', True, b"CSV"),
        ("COPY BINARY t TO STDOUT", b"SELECT * FROM t", True, b"BINARY "),
        ("COPY t TO '/a'", b"SELECT * FROM t", False, b""),
        ("COPY (SELECT 1) TO PROGRAM 'x'", b"SELECT 1", False, b"'x'"),
    ],
)  # fmt: skip
def test_copy_gives_the_query_of_its_rows(
    text: str, query: bytes, to_client: bool, options: bytes
) -> None:
    found = utility(text)
    assert isinstance(found, CopyOut)
    assert (found.query, found.to_client, found.options) == (query, to_client, options)


@pytest.mark.parametrize(
    "text", ["COPY t FROM STDIN", "COPY t (a) FROM '/x'", "COPY", "COPY (", "COPY () TO STDOUT"]
)
def test_what_copy_reads_from_a_client_is_no_query(text: str) -> None:
    assert utility(text) is None


def test_declare_gives_its_name_its_options_and_its_query() -> None:
    found = utility('DECLARE "My c" BINARY NO SCROLL CURSOR WITH HOLD FOR SELECT 1 FOR UPDATE')
    assert isinstance(found, Declare)
    assert found.name == b"My c"
    assert {"BINARY", "NO", "SCROLL", "WITH", "HOLD"} <= found.options
    assert found.head == b'DECLARE "My c" BINARY NO SCROLL CURSOR WITH HOLD FOR'
    assert found.query == b"SELECT 1 FOR UPDATE"


@pytest.mark.parametrize(
    ("text", "options", "analyze", "query"),
    [
        ("EXPLAIN SELECT 1", b"", False, b"SELECT 1"),
        ("EXPLAIN ANALYZE VERBOSE SELECT 1", b"ANALYZE VERBOSE", True, b"SELECT 1"),
        ("EXPLAIN (ANALYZE, FORMAT JSON) SELECT 1", b"(ANALYZE, FORMAT JSON)", True, b"SELECT 1"),
        ("EXPLAIN (SELECT 1)", b"", False, b"(SELECT 1)"),
        ("EXPLAIN (FORMAT TEXT) (SELECT 1)", b"(FORMAT TEXT)", False, b"(SELECT 1)"),
    ],
)
def test_explain_gives_its_options_and_its_query(
    text: str, options: bytes, analyze: bool, query: bytes
) -> None:
    found = utility(text)
    assert isinstance(found, Explain)
    assert (found.options, found.analyze, found.query) == (options, analyze, query)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PREPARE P (int) AS SELECT $1", Prepare(b"p", b"SELECT $1")),
        ("PREPARE TRANSACTION 'x'", None),
        ("EXECUTE p", Run(b"p", ())),
        ('EXECUTE "P" (1, f(2, 3), ARRAY[4, 5], \')\')', Run(b"P", (b"1", b"f(2, 3)", b"ARRAY[4, 5]", b"')'"))),
        ("EXECUTE p (1,)", None),
        ("FETCH c", Fetch(False, (), b"c")),
        ("FETCH FORWARD 10 FROM c", Fetch(False, ("FORWARD", "10"), b"c")),
        ("MOVE ALL IN c", Fetch(True, ("ALL",), b"c")),
        ("FETCH -1 FROM c", Fetch(False, ("-", "1"), b"c")),
        ("CLOSE ALL", CloseCursor(None)),
        ('CLOSE "all"', CloseCursor(b"all")),
        ("SELECT 1", None),
    ],
)  # fmt: skip
def test_statements_about_others_give_their_names(text: str, expected: object) -> None:
    assert utility(text) == expected
