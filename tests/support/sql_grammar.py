"""Statements from a grammar: typed expressions over the tables of `sql_tables`, from a seed.

Every statement is valid PostgreSQL. `Statement.ordered` is true if its ORDER BY is total, so that
the order of the rows is part of the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.support.sql_tables import COLUMNS, TABLES
from tests.support.sql_words import (
    CLOCK,
    EXPRESSIONS,
    INTEGERS,
    INTERVALS,
    LITERALS,
    ORDERED,
    PARTS,
    PATTERNS,
    TEMPLATES,
    UNITS,
)


@dataclass(frozen=True, slots=True)
class Statement:
    sql: str
    ordered: bool


@dataclass(frozen=True, slots=True)
class Source:
    """The result of FROM: its text, and the columns by type."""

    text: str
    columns: tuple[tuple[str, str], ...]
    # Columns that are unique together.
    key: str


class Grammar:
    """Generates statements; the same seed gives the same statements."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._names = 0
        self._plain = False
        self._kinds: list[Callable[[], Statement]] = [
            self._rows,
            self._rows,
            self._rows,
            self._groups,
            self._groups,
            self._windows,
            self._united,
            self._distinct,
            self._nested,
            self._totals,
        ]

    def statement(self) -> Statement:
        self._names = 0
        return self.random.choice(self._kinds)()

    def single(self) -> Statement:
        """One expression of one row without null constants, CASE or subqueries: PostgreSQL computes all
        of it, so both have the same errors.
        """
        self._plain = True
        self._names = 0
        table = self.random.choice(("calm", "other", "wild", "wild"))
        columns = tuple((f"a.{column}", kind) for column, kind in COLUMNS)
        source = Source(f"{table} a", columns, "a.id")
        row = self.random.randint(1, 12)
        cell = self._of(self.random.choice([kind for kind in ORDERED if kind != "bool"]), source, 3)
        self._plain = False
        return Statement(f"SELECT {cell} FROM {table} a WHERE a.id = {row}", True)

    # Statements.

    def _rows(self) -> Statement:
        source = self._source()
        chosen = ", ".join(self._any(source, 3) for _ in range(self.random.randint(1, 4)))
        where = self._where(source)
        total = self.random.random() < 0.6
        order = f" ORDER BY {self._sort(source)}{source.key}" if total else ""
        limit = self._limit() if total else ""
        return Statement(f"SELECT {chosen} FROM {source.text}{where}{order}{limit}", total)

    def _groups(self) -> Statement:
        source = self._source()
        keys = [self._key(source) for _ in range(self.random.randint(1, 2))]
        chosen = [*keys, *(self._aggregate(source) for _ in range(self.random.randint(1, 3)))]
        having = ""
        if self.random.random() < 0.3:
            having = f" HAVING count(*) {self._comparison()} {self.random.randint(0, 3)}"
        plain = ", ".join(keys)
        grouping = plain
        ordered = True
        if self.random.random() < 0.25:
            word = self.random.choice(("ROLLUP", "CUBE"))
            grouping = f"{word} ({plain})"
            ordered = False
        numbers = ", ".join(str(number) for number in range(1, len(keys) + 1))
        order = f" ORDER BY {numbers}" if ordered else ""
        return Statement(
            f"SELECT {', '.join(chosen)} FROM {source.text}{self._where(source)} GROUP BY {grouping}{having}{order}",
            ordered,
        )

    def _totals(self) -> Statement:
        source = self._source()
        chosen = ", ".join(self._aggregate(source) for _ in range(self.random.randint(1, 4)))
        return Statement(f"SELECT {chosen} FROM {source.text}{self._where(source)}", True)

    def _windows(self) -> Statement:
        source = self._source()
        chosen = ", ".join(self._window(source) for _ in range(self.random.randint(1, 2)))
        where = self._where(source)
        return Statement(
            f"SELECT {source.key}, {chosen} FROM {source.text}{where} ORDER BY {source.key}", True
        )

    def _united(self) -> Statement:
        kinds = [self.random.choice(ORDERED) for _ in range(self.random.randint(1, 2))]
        word = self.random.choice(
            (
                "UNION ALL",
                "UNION ALL",
                "UNION",
                "INTERSECT",
                "EXCEPT",
                "INTERSECT ALL",
                "EXCEPT ALL",
            )
        )
        sides = []
        for _ in range(2):
            source = self._source()
            cells = ", ".join(self._simple(kind, source) for kind in kinds)
            sides.append(f"SELECT {cells} FROM {source.text}{self._where(source)}")
        return Statement(f"{sides[0]} {word} {sides[1]}", False)

    def _distinct(self) -> Statement:
        source = self._source()
        if self.random.random() < 0.4:
            key = self._column(self.random.choice(ORDERED), source)
            rest = self._any(source, 1)
            order = f" ORDER BY {key}, {source.key}"
            return Statement(
                f"SELECT DISTINCT ON ({key}) {key}, {rest} FROM {source.text}{self._where(source)}{order}",
                True,
            )
        chosen = ", ".join(self._key(source) for _ in range(self.random.randint(1, 2)))
        return Statement(f"SELECT DISTINCT {chosen} FROM {source.text}{self._where(source)}", False)

    def _nested(self) -> Statement:
        """A subquery in FROM, or a WITH query, with computed columns."""
        source = self._source()
        kinds = [self.random.choice(ORDERED) for _ in range(3)]
        cells = ", ".join(
            f"{self._of(kind, source, 2)} AS x{number}" for number, kind in enumerate(kinds)
        )
        inner = f"SELECT {cells}, {source.key.split(', ')[0]} AS k FROM {source.text}{self._where(source)}"
        columns = tuple((f"q.x{number}", kind) for number, kind in enumerate(kinds))
        if self.random.random() < 0.5:
            derived = Source(f"({inner}) q", (*columns, ("q.k", "int4")), "q.k")
            prefix = ""
        else:
            derived = Source("q", (*columns, ("q.k", "int4")), "q.k")
            prefix = f"WITH q AS ({inner}) "
        chosen = ", ".join(self._any(derived, 1) for _ in range(2))
        return Statement(
            f"{prefix}SELECT {chosen} FROM {derived.text}{self._where(derived)}", False
        )

    # Clauses.

    def _table(self) -> Source:
        name = self.random.choice(TABLES)
        alias = f"a{self._names}"
        self._names += 1
        columns = tuple((f"{alias}.{column}", kind) for column, kind in COLUMNS)
        return Source(f"{name} {alias}", columns, f"{alias}.id")

    def _source(self) -> Source:
        left = self._table()
        if self.random.random() < 0.7:
            return left
        right = self._table()
        word = self.random.choice(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
        kind = self.random.choice(("int4", "int4", "date", "text"))
        names = {"int4": "id", "date": "d", "text": "tx"}
        condition = f"{left.columns[0][0].split('.')[0]}.{names[kind]} = {right.columns[0][0].split('.')[0]}.{names[kind]}"
        if word in ("JOIN", "LEFT JOIN") and self.random.random() < 0.3:
            both = Source("", (*left.columns, *right.columns), "")
            condition += f" AND {self._of('bool', both, 1)}"
        return Source(
            f"{left.text} {word} {right.text} ON {condition}",
            (*left.columns, *right.columns),
            f"{left.key}, {right.key}",
        )

    def _where(self, source: Source) -> str:
        if self.random.random() < 0.45:
            return ""
        return f" WHERE {self._of('bool', source, 2)}"

    def _sort(self, source: Source) -> str:
        if self.random.random() < 0.5:
            return ""
        # Not a constant, which would be the number of a column.
        kind = self.random.choice(ORDERED)
        key = self._column(kind, source)
        if kind in INTEGERS:
            key = f"({key} % 7::{kind})"
        direction = self.random.choice(("", " DESC", " NULLS FIRST", " DESC NULLS LAST"))
        return f"{key}{direction}, "

    def _limit(self) -> str:
        if self.random.random() < 0.7:
            return ""
        return f" LIMIT {self.random.randint(0, 12)} OFFSET {self.random.randint(0, 4)}"

    def _comparison(self) -> str:
        return self.random.choice(("=", "<>", "<", "<=", ">", ">="))

    def _key(self, source: Source) -> str:
        """A column, or an expression that is one value of a fixed scale."""
        kind = self.random.choice(ORDERED)
        if self.random.random() < 0.6 or kind in ("numeric", "bpchar", "float8"):
            return self._column(kind, source)
        column = self._column(kind, source)
        if kind in INTEGERS:
            return f"({column} % {self.random.randint(2, 5)}::{kind})"
        if kind == "text":
            return self.random.choice((f"upper({column})", f"left({column}, 1)"))
        if kind == "date":
            return f"extract(month from {column})"
        if kind == "timestamp":
            return f"date_trunc('{self.random.choice(UNITS)}', {column})"
        return f"({column} IS TRUE)"

    def _aggregate(self, source: Source) -> str:
        filtered = ""
        if self.random.random() < 0.15:
            filtered = f" FILTER (WHERE {self._of('bool', source, 1)})"
        choice = self.random.randint(0, 9)
        kind = self.random.choice((*INTEGERS, "numeric"))
        distinct = "DISTINCT " if self.random.random() < 0.15 else ""
        if choice == 0:
            return f"count(*){filtered}"
        if choice == 1:
            return f"count({distinct}{self._column(self.random.choice(ORDERED), source)}){filtered}"
        if choice in (2, 3):
            return f"sum({distinct}{self._simple(kind, source)}){filtered}"
        if choice == 4:
            return f"avg({self._simple(kind, source)}){filtered}"
        if choice in (5, 6):
            word = self.random.choice(("min", "max"))
            kind = self.random.choice([k for k in ORDERED if k != "bool"])
            return f"{word}({self._column(kind, source)}){filtered}"
        if choice == 7:
            word = self.random.choice(("bool_and", "bool_or", "every"))
            return f"{word}({self._of('bool', source, 1)}){filtered}"
        if choice == 8:
            word = self.random.choice(("stddev", "stddev_pop", "variance", "var_pop"))
            return f"{word}({self._simple(kind, source)}){filtered}"
        return f"string_agg({self._column('text', source)}, '|' ORDER BY {source.key}){filtered}"

    def _window(self, source: Source) -> str:
        partition = ""
        if self.random.random() < 0.5:
            partition = f"PARTITION BY {self._column(self.random.choice(ORDERED), source)} "
        order = f"ORDER BY {source.key}{self.random.choice(('', ' DESC'))}"
        frame = self.random.choice(
            (
                "",
                "",
                " ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING",
                " ROWS UNBOUNDED PRECEDING",
                " RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
                " GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES",
                " ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW",
            )
        )
        kind = self.random.choice((*INTEGERS, "numeric"))
        any_kind = self.random.choice(ORDERED)
        function = self.random.choice(
            (
                "row_number()",
                "rank()",
                "dense_rank()",
                "percent_rank()",
                "cume_dist()",
                "ntile(3)",
                f"lag({self._column(any_kind, source)})",
                f"lead({self._column(any_kind, source)}, 2)",
                f"first_value({self._column(any_kind, source)})",
                f"last_value({self._column(any_kind, source)})",
                f"nth_value({self._column(any_kind, source)}, 2)",
                f"sum({self._column(kind, source)})",
                f"avg({self._column(kind, source)})",
                f"min({self._column(kind, source)})",
                f"max({self._column(kind, source)})",
                "count(*)",
            )
        )
        return f"{function} OVER ({partition}{order}{frame})"

    # Expressions.

    def _any(self, source: Source, depth: int) -> str:
        return self._of(self.random.choice(ORDERED), source, depth)

    def _column(self, kind: str, source: Source) -> str:
        names = [name for name, its in source.columns if its == kind]
        return self.random.choice(names) if names else self._literal(kind)

    def _literal(self, kind: str) -> str:
        texts = LITERALS[kind]
        if self._plain:
            texts = tuple(text for text in texts if not text.startswith("NULL"))
        return self.random.choice(texts)

    def _simple(self, kind: str, source: Source) -> str:
        return (
            self._of(kind, source, 1) if self.random.random() < 0.3 else self._column(kind, source)
        )

    def _of(self, kind: str, source: Source, depth: int) -> str:
        """An expression of the type, of at most so many levels."""
        if depth <= 0 or self.random.random() < 0.2:
            return self._column(kind, source) if self.random.random() < 0.7 else self._literal(kind)
        if not self._plain and self.random.random() < 0.15:
            return self._common(kind, source, depth - 1)
        below = depth - 1
        if kind in INTEGERS:
            return self._integer(kind, source, below)
        made: Callable[[Source, int], str] = getattr(self, f"_{kind}")
        return made(source, below)

    def _common(self, kind: str, source: Source, depth: int) -> str:
        """Expressions of every type."""
        first, second = self._of(kind, source, depth), self._of(kind, source, depth)
        choice = self.random.randint(0, 4)
        if choice == 0:
            return f"CASE WHEN {self._of('bool', source, depth)} THEN {first} ELSE {second} END"
        if choice == 1:
            return f"coalesce({first}, {second})"
        if choice == 2:
            return f"nullif({first}, {second})"
        if choice == 3 and kind != "bpchar":
            return f"{self.random.choice(('greatest', 'least'))}({first}, {second})"
        return f"(SELECT {first} LIMIT 1)" if self.random.random() < 0.3 else first

    def _integer(self, kind: str, source: Source, depth: int) -> str:
        one = self._of(kind, source, depth)
        two = self._of(self.random.choice(INTEGERS[: INTEGERS.index(kind) + 1]), source, depth)
        choice = self.random.randint(0, 8)
        if choice <= 3:
            return f"({one} {self.random.choice('+-*/')} {two})"
        if choice == 4:
            return f"({one} % {self._of(kind, source, depth)})"
        if choice == 5:
            return self.random.choice(
                (
                    f"abs({one})",
                    f"(- {one})",
                    f"({one} & {self._literal(kind)})",
                    f"({one} # {self._literal(kind)})",
                )
            )
        if choice == 6 and kind == "int4":
            text = self._of("text", source, depth)
            return self.random.choice(
                (
                    f"length({text})",
                    f"position({self._literal('text')} in {text})",
                    f"({self._of('date', source, depth)} - {self._of('date', source, depth)})",
                    f"octet_length({text})",
                    f"({self._of('bool', source, depth)})::int4",
                )
            )
        if choice == 7:
            return f"({self._of(self.random.choice((*INTEGERS, 'numeric', 'float8')), source, depth)})::{kind}"
        return one

    def _numeric(self, source: Source, depth: int) -> str:
        one, two = self._of("numeric", source, depth), self._of("numeric", source, depth)
        choice = self.random.randint(0, 8)
        if choice <= 3:
            return f"({one} {self.random.choice('+-*/')} {two})"
        if choice == 4:
            return f"({one} % {two})"
        if choice == 5:
            digits = self.random.randint(0, 4)
            return self.random.choice(
                (
                    f"round({one}, {digits})",
                    f"trunc({one}, {digits})",
                    f"ceil({one})",
                    f"floor({one})",
                    f"abs({one})",
                    f"(- {one})",
                    f"sign({one})",
                    f"round({one})",
                )
            )
        if choice == 6:
            return f"({one})::numeric({self.random.randint(4, 12)},{self.random.randint(0, 4)})"
        if choice == 7:
            part = self.random.choice((*PARTS, *CLOCK))
            return f"extract({part} from {self._of('timestamp', source, depth)})"
        return f"({self._of(self.random.choice(INTEGERS), source, depth)})::numeric"

    def _float8(self, source: Source, depth: int) -> str:
        one, two = self._of("float8", source, depth), self._of("float8", source, depth)
        choice = self.random.randint(0, 6)
        if choice <= 3:
            return f"({one} {self.random.choice('+-*/')} {two})"
        if choice == 4:
            return (
                f"{self.random.choice(('abs', 'floor', 'ceil', 'round', 'trunc', 'sqrt'))}({one})"
            )
        if choice == 5:
            return (
                f"({self._of(self.random.choice((*INTEGERS, 'numeric')), source, depth)})::float8"
            )
        return f"date_part('{self.random.choice((*PARTS, *CLOCK))}', {self._of('timestamp', source, depth)})"

    def _text(self, source: Source, depth: int) -> str:
        one, two = self._of("text", source, depth), self._of("text", source, depth)
        number, count = self.random.randint(-3, 6), self.random.randint(-1, 5)
        return self.random.choice(
            (
                f"({one} || {two})",
                f"upper({one})",
                f"lower({one})",
                f"substr({one}, {number})",
                f"substr({one}, {number}, {count})",
                f"left({one}, {number})",
                f"right({one}, {number})",
                f"replace({one}, {self._literal('text')}, {self._literal('text')})",
                f"trim({one})",
                f"ltrim({one}, 'ab')",
                f"rpad({one}, {max(number, 0)}, 'xy')",
                f"lpad({one}, {number})",
                f"repeat({one}, {count})",
                f"md5({one})",
                f"split_part({one}, 'b', {abs(count) + 1})",
                f"({self._of(self.random.choice((*INTEGERS, 'numeric', 'bool')), source, depth)})::text",
                f"({one})::varchar({abs(number) + 1})",
                f"({self._of('bpchar', source, depth)})::text",
                f"concat({one}, {self._any(source, 0)}, {self._of('numeric', source, 0)})",
                f"concat_ws({two}, {one}, {self._of('int4', source, 0)}, {two})",
                f"translate({one}, 'ab', 'x')",
                f"({self._of('date', source, depth)})::text",
                f"({self._of('timestamp', source, depth)})::text",
                f"to_char({self._of('timestamp', source, depth)}, {self.random.choice(TEMPLATES)})",
            )
        )

    def _bpchar(self, source: Source, depth: int) -> str:
        return f"({self._of('text', source, depth)})::char({self.random.randint(1, 6)})"

    def _date(self, source: Source, depth: int) -> str:
        one = self._of("date", source, depth)
        return self.random.choice(
            (
                f"({one} + {self._of('int4', source, 0)})",
                f"({one} - {self.random.randint(-400, 400)})",
                f"({self._of('timestamp', source, depth)})::date",
            )
        )

    def _timestamp(self, source: Source, depth: int) -> str:
        one = self._of("timestamp", source, depth)
        interval = f"{self.random.choice('+-')} interval {self.random.choice(INTERVALS)}"
        return self.random.choice(
            (
                f"({one} {interval})",
                f"({self._of('date', source, depth)} {interval})",
                f"date_trunc('{self.random.choice(UNITS)}', {one})",
                f"({self._of('date', source, depth)})::timestamp",
            )
        )

    def _bool(self, source: Source, depth: int) -> str:  # noqa: PLR0911, C901  # a case for each form
        kind = self.random.choice(ORDERED)
        one, two = self._of(kind, source, depth), self._of(kind, source, depth)
        choice = self.random.randint(0, 3 if self._plain else 13)
        if choice <= 3:
            return f"({one} {self._comparison()} {two})"
        if choice == 4:
            return f"({self._of('bool', source, depth)} {self.random.choice(('AND', 'OR'))} {self._of('bool', source, depth)})"
        if choice == 5:
            return f"(NOT {self._of('bool', source, depth)})"
        if choice == 6:
            return f"({one} IS {self.random.choice(('', 'NOT '))}NULL)"
        if choice == 7:
            words = self.random.choice(("IN", "NOT IN"))
            return f"({one} {words} ({self._literal(kind)}, {self._literal(kind)}, {two}))"
        if choice == 8:
            if self.random.random() < 0.3:
                return f"({self._of('text', source, depth)} {self.random.choice(('~', '!~'))} {self.random.choice(EXPRESSIONS)})"
            if self.random.random() < 0.2:
                moments = f"{self._of('timestamp', source, 0)} - {self._of('timestamp', source, 0)}"
                return (
                    f"(({moments}) {self._comparison()} interval {self.random.choice(INTERVALS)})"
                )
            words = self.random.choice(("LIKE", "NOT LIKE", "ILIKE"))
            return f"({self._of('text', source, depth)} {words} {self.random.choice(PATTERNS)})"
        if choice == 9:
            return f"({one} IS {self.random.choice(('', 'NOT '))}DISTINCT FROM {two})"
        if choice == 10:
            if self.random.random() < 0.3:
                operator = self.random.choice(("<", "<=", ">", ">="))
                return f"(({self._column(kind, source)}, {self._column('int4', source)}) {operator} ({self._column(kind, source)}, {self._literal('int4')}))"
            return f"({one} BETWEEN {self._literal(kind)} AND {two})"
        if choice == 11:
            truth = self.random.choice(("TRUE", "FALSE", "UNKNOWN"))
            return f"(({self._of('bool', source, depth)}) IS {self.random.choice(('', 'NOT '))}{truth})"
        return self._subquery(source, kind, one)

    def _subquery(self, source: Source, kind: str, one: str) -> str:
        inner = self._table()
        both = Source("", (*inner.columns, *source.columns), "")
        cell = self._column(kind, inner)
        where = f" WHERE {self._of('bool', both, 1)}" if self.random.random() < 0.7 else ""
        choice = self.random.randint(0, 3)
        if choice == 0:
            return f"({self.random.choice(('', 'NOT '))}EXISTS (SELECT 1 FROM {inner.text}{where}))"
        if choice == 1:
            return f"({one} {self.random.choice(('IN', 'NOT IN'))} (SELECT {cell} FROM {inner.text}{where}))"
        if choice == 2:
            word = self.random.choice(("ANY", "ALL"))
            return f"({one} {self._comparison()} {word} (SELECT {cell} FROM {inner.text}{where}))"
        if kind == "bool":
            return f"(SELECT count(*) > 2 FROM {inner.text}{where})"
        word = self.random.choice(("max", "min"))
        return f"({one} {self._comparison()} (SELECT {word}({cell}) FROM {inner.text}{where}))"
