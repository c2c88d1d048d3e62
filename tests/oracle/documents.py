"""Documents to try, and PostgreSQL's own word on which of them are the same."""

from __future__ import annotations

import random
from typing import Any

_NUMBERS = (
    "0", "-1", "1.5", "1.50", "2.0", "2.00", "0.0", "0.00", "1e-7", "1.0e-7", "1e22", "1e400", "-1e-400", "0.1",
    "9007199254740993", "9007199254740993.0", "9223372036854775807", "18446744073709551615", "18446744073709551616",
    "-9223372036854775809", "12345678901234567890123", "0.1234567890123456789", "100000000000000000000000",
    "10000000000000000.0", "5e-324", "1.7976931348623157e308", "123456789.10", "0.30000000000000004",
)  # fmt: skip
_OTHERS = (
    "null",
    "true",
    "false",
    '""',
    '"null"',
    '"1.50"',
    r'"\" 1.50 \\"',
    '"12345678901234567890123"',
    '"ä\\u0001"',
)
_NAMES = ('"a"', '"b"', '"1.50"', r'"\"x"', '"key with spaces"')


def document(chance: random.Random, depth: int = 0) -> str:
    """A JSON text that jsonb takes."""
    kind = chance.random()
    if depth > 3 or kind < 0.5:
        pool = _NUMBERS if chance.random() < 0.6 else _OTHERS
        return _decimal(chance) if chance.random() < 0.2 else chance.choice(pool)
    inner = [document(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind < 0.75:
        return f"[{', '.join(inner)}]"
    names = chance.sample(_NAMES, len(inner))
    return (
        "{" + ", ".join(f"{name}: {value}" for name, value in zip(names, inner, strict=True)) + "}"
    )


def _decimal(chance: random.Random) -> str:
    digits = "".join(chance.choice("0123456789") for _ in range(chance.randrange(1, 20)))
    return f"{chance.randrange(1000)}.{digits}"


async def texts(connection: Any, documents: list[str]) -> list[str]:
    """The text that PostgreSQL prints of each as a jsonb."""
    rows = await connection.fetch(
        (
            "SELECT (document::jsonb)::text FROM unnest($1::text[]) WITH ORDINALITY AS of "
            "(document, place) ORDER BY place"
        ),
        documents,
    )
    return [row[0] for row in rows]
