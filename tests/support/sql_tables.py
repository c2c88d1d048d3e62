"""The tables of the differential suite: ordinary values, extreme values, and an empty table."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

COLUMNS: Final = (
    ("id", "int4"),
    ("i2", "int2"),
    ("i4", "int4"),
    ("i8", "int8"),
    ("n", "numeric"),
    ("m", "numeric"),
    ("f", "float8"),
    ("tx", "text"),
    ("vc", "text"),
    ("ch", "bpchar"),
    ("d", "date"),
    ("ts", "timestamp"),
    ("b", "bool"),
)
TABLES: Final = ("calm", "calm", "calm", "other", "wild", "nothing")

_DEFINITION = """
(id int4 PRIMARY KEY, i2 int2, i4 int4, i8 int8, n numeric(10,2), m numeric(18,6), f float8, tx text,
vc varchar(10), ch char(4), d date, ts timestamp, b bool)
"""
_WILD: Final = {
    "i2": ("0", "32767", "-32768", "NULL", "-1"),
    "i4": ("0", "2147483647", "-2147483648", "NULL", "-1"),
    "i8": ("0", "9223372036854775807", "-9223372036854775808", "NULL", "-1"),
    "n": ("0", "99999999.99", "-99999999.99", "NULL", "0.01"),
    "m": ("0", "999999999999.999999", "-999999999999.999999", "NULL", "0.000001"),
    "f": ("0", "'NaN'", "'Infinity'", "'-Infinity'", "1e308", "5e-324", "NULL", "-1.5"),
    "tx": (
        "''",
        "' '",
        "'é'",
        "'日本語'",
        "NULL",
        "'%_\\'",
        "'ABC'",
        "'abc'",
        "E'a\\tb\\n'",
        "'NULL'",
    ),
    "vc": ("''", "'zzzzzzzzzz'", "NULL", "'ß'"),
    "ch": ("''", "'abcd'", "NULL", "'é  '", "' a'"),
    "d": (
        "'infinity'",
        "'-infinity'",
        "'4713-01-01 BC'",
        "'5874897-12-31'",
        "NULL",
        "'0001-01-01'",
        "'2024-02-29'",
    ),
    "ts": (
        "'infinity'",
        "'-infinity'",
        "'4713-01-01 00:00:00 BC'",
        "'294246-12-31 23:59:59.999999'",
        "NULL",
        "'0001-01-01 BC'",
        "'2024-02-29 23:59:59.999999'",
    ),
    "b": ("true", "false", "NULL"),
}


def statements(seed: int = 1) -> Sequence[str]:
    """DDL and rows."""
    random = Random(seed)
    made = [f"CREATE TABLE {name} {_DEFINITION}" for name in ("calm", "other", "wild", "nothing")]
    made += [f"INSERT INTO calm VALUES ({_calm(random, number)})" for number in range(1, 26)]
    made += [f"INSERT INTO other VALUES ({_calm(random, number)})" for number in range(5, 21)]
    for number in range(1, 13):
        cells = ", ".join(random.choice(_WILD[name]) for name, _ in COLUMNS[1:])
        made.append(f"INSERT INTO wild VALUES ({number}, {cells})")
    return made


def _calm(random: Random, number: int) -> str:
    texts = ("'a'", "'b'", "'abc'", "'Abc'", "'aab b'", "''", "'bb'", "'é'", "'a_c'", "'xyz'")
    cells = [
        str(number),
        str(random.randint(-9, 9)),
        str(random.randint(-50, 50)),
        str(random.randint(-1000, 100000)),
        f"{random.randint(-10000, 10000) / 100:.2f}",
        f"{random.randint(-9999999, 9999999) / 1000000:.6f}",
        str(random.randint(-40, 40) / 8),
        random.choice(texts),
        random.choice(texts),
        random.choice(("'a'", "'ab'", "'abc'", "'abcd'", "''")),
        f"'{random.randint(1990, 2030)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}'",
        f"'{random.randint(1960, 2030)}-{random.randint(1, 12):02}-{random.randint(1, 28):02} {random.randint(0, 23):02}:{random.randint(0, 59):02}:{random.randint(0, 59999) / 1000:06.3f}'",
        random.choice(("true", "false")),
    ]
    return ", ".join(
        cell if place == 0 or random.random() > 0.12 else "NULL" for place, cell in enumerate(cells)
    )
