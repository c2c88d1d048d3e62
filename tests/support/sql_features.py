"""The supported SQL over the lake: features with an example statement each, over `sql_tables`.

docs/sql-support.md is generated from this list (`python -m tests.support.sql_features PATH`). A test runs
every statement on PostgreSQL and on the copy: one that works has the same answer.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from headrace.sql.aggregates import AGGREGATES
from headrace.sql.expressions import FUNCTIONS
from headrace.sql.windows import WINDOW_FUNCTIONS


class Support(StrEnum):
    """`EXACT`: DuckDB refuses it. `DIFFERS`: one side can fail where the other doesn't, which
    PostgreSQL's planner decides too.
    """

    WORKS = "works"
    EXACT = "by PostgreSQL"
    REFUSED = "refused"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class Feature:
    name: str
    support: Support
    statement: str


def _works(name: str, statement: str) -> Feature:
    return Feature(name, Support.WORKS, statement)


def _exact(name: str, statement: str) -> Feature:
    return Feature(name, Support.EXACT, statement)


def _refused(name: str, statement: str) -> Feature:
    return Feature(name, Support.REFUSED, statement)


FEATURES: Final[dict[str, tuple[Feature, ...]]] = {
    "Queries": (
        _works(
            "WHERE, ORDER BY, LIMIT, OFFSET",
            "SELECT id, tx FROM calm WHERE n > 1 ORDER BY id DESC LIMIT 5 OFFSET 1",
        ),
        _works("NULLS FIRST and LAST", "SELECT id, i4 FROM calm ORDER BY i4 NULLS FIRST, id"),
        _works(
            "inner and outer joins, USING",
            "SELECT id, c.tx, o.tx FROM calm c FULL JOIN other o USING (id) ORDER BY id",
        ),
        _works(
            "subqueries in FROM, LATERAL",
            "SELECT c.id, l.x FROM calm c, LATERAL (SELECT c.i4 + 1 AS x) l ORDER BY c.id",
        ),
        _works(
            "VALUES",
            "SELECT x, y FROM (VALUES (1, 'a'), (2, 'b')) v(x, y), calm WHERE id = x ORDER BY x",
        ),
        _works(
            "WITH",
            "WITH q AS (SELECT i4, count(*) AS c FROM calm GROUP BY i4) SELECT max(c) FROM q",
        ),
        _works(
            "WITH RECURSIVE",
            "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r WHERE x < 5) SELECT x, tx FROM r JOIN calm ON id = x ORDER BY x",
        ),
        _works(
            "EXISTS, IN, ANY, ALL",
            "SELECT id FROM calm c WHERE EXISTS (SELECT FROM other o WHERE o.id = c.id) AND i4 <> ALL (SELECT i4 FROM other WHERE i4 IS NOT NULL) ORDER BY id",
        ),
        _works(
            "IN with rows",
            "SELECT id FROM calm WHERE (id, b) IN (SELECT id, b FROM other) ORDER BY id",
        ),
        _works(
            "subqueries that give one value, correlated too",
            "SELECT id, (SELECT max(n) FROM other o WHERE o.id <= c.id) FROM calm c ORDER BY id",
        ),
        _works(
            "UNION, INTERSECT, EXCEPT, also with ALL",
            "SELECT id FROM calm EXCEPT SELECT id FROM other ORDER BY 1",
        ),
        _works("DISTINCT", "SELECT DISTINCT i2, b FROM calm ORDER BY i2, b"),
        _works("DISTINCT ON", "SELECT DISTINCT ON (b) b, id FROM calm ORDER BY b, id"),
        _works(
            "GROUP BY, HAVING",
            "SELECT b, count(*), sum(n), avg(n) FROM calm GROUP BY b HAVING count(*) > 1 ORDER BY b",
        ),
        _works(
            "GROUP BY a primary key", "SELECT id, tx, count(*) FROM calm GROUP BY id ORDER BY id"
        ),
        _works(
            "GROUPING SETS, ROLLUP, CUBE",
            "SELECT b, i2, grouping(b, i2), count(*) FROM calm GROUP BY CUBE (b, i2)",
        ),
        _exact(
            "GROUPING SETS of a constant",
            "SELECT 1 AS x, count(*) FROM calm GROUP BY ROLLUP (1) ORDER BY x NULLS FIRST",
        ),
        _works(
            "rows compared with < and >",
            "SELECT id FROM calm WHERE (b, id) > (false, 10) ORDER BY id",
        ),
        _exact(
            "FETCH FIRST … WITH TIES",
            "SELECT id FROM calm ORDER BY i2 FETCH FIRST 3 ROWS WITH TIES",
        ),
        _refused("FOR UPDATE and FOR SHARE", "SELECT id FROM calm FOR UPDATE"),
        _exact("TABLESAMPLE", "SELECT id FROM calm TABLESAMPLE system (10)"),
        _exact("functions in FROM", "SELECT * FROM generate_series(1, 3), calm"),
        _exact(
            "set-returning functions in the select list", "SELECT generate_series(1, 3) FROM calm"
        ),
        _exact("whole rows", "SELECT calm FROM calm"),
        _refused("system columns", "SELECT ctid FROM calm"),
        _exact(
            "tables outside the lake in the same statement",
            "SELECT id FROM calm JOIN pg_class ON oid = id",
        ),
        Feature(
            "an error in a row that LIMIT leaves out",
            Support.DIFFERS,
            "SELECT ch, i8 * i8 FROM wild ORDER BY ch DESC, id LIMIT 2 OFFSET 1",
        ),
    ),
    "Aggregates": (
        _works(
            "count, also DISTINCT and with FILTER",
            "SELECT count(*), count(tx), count(DISTINCT tx), count(*) FILTER (WHERE b) FROM calm",
        ),
        _works(
            "sum and avg of integers and numeric(p,s)",
            "SELECT sum(i2), sum(i8), sum(m), avg(i4), avg(n), avg(DISTINCT i2) FROM calm",
        ),
        _works("min, max", "SELECT min(tx), max(d), min(f), max(ch), max(ts) FROM calm"),
        _works(
            "variance, stddev of integers and numeric(p,s)",
            "SELECT variance(i4), stddev(n), var_pop(m), stddev_pop(i8) FROM calm",
        ),
        _works("bool_and, bool_or, every", "SELECT bool_and(b), bool_or(b), every(b) FROM calm"),
        _works(
            "string_agg, array_agg with ORDER BY",
            "SELECT string_agg(tx, ',' ORDER BY id), array_agg(i4 ORDER BY id) FROM calm",
        ),
        _exact("string_agg, array_agg without ORDER BY", "SELECT string_agg(tx, ',') FROM calm"),
        _exact(
            "sum, avg, variance of floats: the order of rows decides the last digits",
            "SELECT sum(f) FROM calm",
        ),
        _exact(
            "percentile_cont, mode",
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY f) FROM calm",
        ),
        _exact("json aggregates", "SELECT json_agg(id) FROM calm"),
        _exact(
            "groups of numerics with different display scales",
            "SELECT coalesce(n, 0), count(*) FROM calm GROUP BY 1",
        ),
    ),
    "Window functions": (
        _works(
            "row_number, rank, dense_rank, percent_rank, cume_dist, ntile",
            "SELECT id, row_number() OVER w, rank() OVER w, dense_rank() OVER w, percent_rank() OVER w, cume_dist() OVER w, ntile(3) OVER w FROM calm WINDOW w AS (ORDER BY id)",
        ),
        _works(
            "lag, lead, first_value, last_value, nth_value",
            "SELECT id, lag(n) OVER w, lead(tx, 2) OVER w, first_value(n) OVER w, last_value(d) OVER w, nth_value(b, 2) OVER w FROM calm WINDOW w AS (ORDER BY id)",
        ),
        _works(
            "aggregates over windows",
            "SELECT id, sum(n) OVER (PARTITION BY b ORDER BY id), avg(i4) OVER (ORDER BY id ROWS 2 PRECEDING) FROM calm",
        ),
        _works(
            "frames of ROWS and GROUPS, EXCLUDE",
            "SELECT id, count(*) OVER (ORDER BY i2 GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES) FROM calm",
        ),
        _exact(
            "frames that end before their start",
            "SELECT count(*) OVER (ORDER BY id ROWS BETWEEN 3 FOLLOWING AND 1 FOLLOWING) FROM calm",
        ),
        _exact(
            "RANGE with an offset", "SELECT sum(i4) OVER (ORDER BY i4 RANGE 2 PRECEDING) FROM calm"
        ),
    ),
    "Expressions": (
        _works(
            "CASE, COALESCE, NULLIF, GREATEST, LEAST",
            "SELECT id, CASE WHEN b THEN n ELSE 0 END, coalesce(n, 0), nullif(i4, 1), greatest(n, 1.5), least(i2, i4) FROM calm ORDER BY id",
        ),
        _works(
            "IS NULL, IS TRUE, IS DISTINCT FROM, BETWEEN, IN",
            "SELECT id FROM calm WHERE i4 IS DISTINCT FROM 1 AND (b IS NOT FALSE) AND i2 BETWEEN -3 AND 7 AND tx IN ('a', 'b') ORDER BY id",
        ),
        _works("overflow of integers is an error", "SELECT i4 + 1 FROM wild"),
        _works("division by zero is an error", "SELECT id / (id - id) FROM calm"),
        _works(
            "arithmetic on integers and floats",
            "SELECT id, i2 + i4, i8 * 2, i4 / 3, i4 % 3, - i2, abs(i4), f * 2 + 1, f / 3, i4 & 3 FROM calm ORDER BY id",
        ),
        _works(
            "arithmetic on numeric(p,s), with PostgreSQL's scales",
            "SELECT id, n + m, n * m, n / 3, n % 7, round(m, 2), trunc(m, 1), ceil(n), floor(n) FROM calm ORDER BY id",
        ),
        _works(
            "casts between numbers",
            "SELECT id, n::int4, f::int8, i4::float8, n::float8, m::numeric(8,2), i8::numeric FROM calm ORDER BY id",
        ),
        _works(
            "casts of integers, numeric, dates to text",
            "SELECT id, i4::text, n::text, d::text, ts::text, b::text FROM calm ORDER BY id",
        ),
        _works(
            "current_date, now()", "SELECT count(*) FROM calm WHERE d < current_date AND ts < now()"
        ),
        _exact("casts of text to other types", "SELECT tx::int4 FROM calm"),
        _exact("casts of floats to text", "SELECT f::text FROM calm"),
        _exact(
            "exp, ln, power, sin: the last digit depends on the machine", "SELECT exp(f) FROM calm"
        ),
        _exact("volatile functions", "SELECT random() FROM calm"),
        _exact("arrays that a query makes", "SELECT ARRAY[i2, i4] FROM calm"),
    ),
    "Texts": (
        _works(
            "comparisons and ORDER BY under the collation C",
            "SELECT tx FROM calm WHERE tx > 'a' ORDER BY tx, id",
        ),
        _works(
            "character(n) without its padding",
            "SELECT ch, length(ch) FROM calm WHERE ch = 'ab' ORDER BY id",
        ),
        _works(
            "LIKE and ILIKE with constant patterns",
            r"SELECT id FROM calm WHERE tx LIKE 'a\_%' OR tx ILIKE '%B' ORDER BY id",
        ),
        _works(
            "simple regular expressions", "SELECT id FROM calm WHERE tx ~ '^a.*[bc]$' ORDER BY id"
        ),
        _works(
            "lower, upper, length, substr, left, right, trim, replace",
            "SELECT id, lower(tx), upper(vc), length(tx), substr(tx, 2, 2), left(tx, -1), right(tx, 2), trim(tx), replace(tx, 'a', 'x') FROM calm ORDER BY id",
        ),
        _works(
            "||, concat, concat_ws, lpad, rpad, repeat, split_part, position, md5",
            "SELECT id, tx || vc, concat(tx, i4, n), concat_ws('-', tx, vc), lpad(tx, 5, '*'), rpad(tx, 2), repeat(tx, 2), split_part(tx, 'b', 1), position('b' in tx), md5(tx) FROM calm ORDER BY id",
        ),
        _exact("other collations than C", "SELECT id FROM calm WHERE tx < 'b' COLLATE ucs_basic"),
        _exact(
            "ORDER BY, min, windows and set operations with other collations than C",
            "SELECT tx COLLATE pg_catalog.ucs_basic AS x, rank() OVER (ORDER BY tx COLLATE ucs_basic) FROM calm UNION SELECT min(vc COLLATE ucs_basic), 0 FROM calm ORDER BY 1, 2",
        ),
        _exact(
            "regexp_replace, SIMILAR TO, other regular expressions",
            "SELECT regexp_replace(tx, 'a+', 'b') FROM calm",
        ),
        _exact("initcap, reverse, format", "SELECT initcap(tx) FROM calm"),
    ),
    "Dates and times": (
        _works(
            "dates and days, timestamps and intervals",
            "SELECT id, d + 1, d - date '2000-01-01', d - interval '1 month', ts + interval '1 day 02:00' FROM calm ORDER BY id",
        ),
        _works(
            "differences of timestamps",
            "SELECT id, ts - timestamp '2000-01-01', extract(epoch from ts - timestamp '2000-01-01') FROM calm ORDER BY id",
        ),
        _works(
            "date_trunc up to years",
            "SELECT id, date_trunc('month', ts), date_trunc('week', ts) FROM calm ORDER BY id",
        ),
        _works(
            "extract, date_part",
            "SELECT id, extract(year from d), extract(dow from ts), extract(second from ts), date_part('week', ts) FROM calm ORDER BY id",
        ),
        _works(
            "to_char with numbers of fixed width",
            "SELECT id, to_char(ts, 'YYYY-MM-DD HH24:MI:SS'), to_char(d, 'YYYY\"-Q\"Q') FROM calm ORDER BY id",
        ),
        _works(
            "timestamptz, if TimeZone is UTC",
            "SELECT id, d::timestamptz, date_trunc('day', d::timestamptz) FROM calm ORDER BY id",
        ),
        _exact("age, to_date, make_date", "SELECT age(ts) FROM calm"),
        _exact("names of months and days in to_char", "SELECT to_char(ts, 'Month') FROM calm"),
    ),
}
"""Features by their part of SQL."""

_LINE = 120
_INTRODUCTION = """\
# SQL support

The SQL server answers these statements from the lake's copies in DuckDB (*works*), or runs them in its private PostgreSQL
on the rows of the cut (*by PostgreSQL*, up to `HEADRACE_SQL_EXACT_ROWS_MAX` rows; [how](sql.md#two-engines)). An answer is
PostgreSQL's in both cases, to the digit and to the SQLSTATE of an error. A *refused* statement has the SQLSTATE `0A000` and
the name of the feature. The tests run each statement of this page, and thousands of generated ones, on PostgreSQL 16 and 18
and compare the answers.

This page is generated from the code (`./taskw docs:sql`).
"""
_FUNCTIONS = """\
## Functions and operators

DuckDB answers these, by PostgreSQL's signature; an operator is listed by its function. A statement with any other is run
by PostgreSQL.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *_features(), _FUNCTIONS, *_lists()])


def _features() -> Iterator[str]:
    for title, features in FEATURES.items():
        yield f"## {title}\n\n| feature | | example |\n|---|---|---|"
        for feature in features:
            statement = feature.statement.replace("|", "\\|")
            yield f"| {feature.name.replace('|', chr(92) + '|')} | {feature.support} | `{statement}` |"
        yield ""


def _lists() -> Iterator[str]:
    yield _listed("Functions and operators", FUNCTIONS)
    yield _listed("Aggregates", AGGREGATES)
    yield _listed("Window functions", WINDOW_FUNCTIONS)


def _listed(title: str, signatures: Iterable[str]) -> str:
    text = " ".join(f"`{signature}`" for signature in sorted(signatures))
    lines = textwrap.fill(text, _LINE, break_long_words=False, break_on_hyphens=False)
    return f"### {title}\n\n{lines}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
