"""The definitions of the types of a table's columns, as far as stored values are printed by them.

Renaming an enum's value, or changing a composite type's attributes, changes the text of values in
existing rows. There is no event, and no new file. Adding a value to an enum changes no row.
"""

from __future__ import annotations

# For a row `c` of pg_class: `oid:digest` of each enum value and each composite type that its
# columns' types consist of.
DEFINITIONS_OF = """
(WITH RECURSIVE used(oid) AS (
    SELECT a.atttypid FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.atttypid >= 16384
  UNION
    SELECT part.oid FROM used u JOIN pg_type t ON t.oid = u.oid
    CROSS JOIN LATERAL (
        SELECT t.typelem UNION ALL SELECT t.typbasetype
        UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
        UNION ALL SELECT a.atttypid FROM pg_attribute a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) AS part(oid)
    WHERE part.oid >= 16384
) SELECT string_agg(oid || ':' || left(md5(text), 8), ',' ORDER BY oid) FROM (
    SELECT e.oid, e.enumlabel::text AS text FROM used u JOIN pg_enum e ON e.enumtypid = u.oid
  UNION ALL
    SELECT t.oid, string_agg(concat_ws(':', a.attnum, a.atttypid, a.attisdropped), ','
        ORDER BY a.attnum)
    FROM used u JOIN pg_type t ON t.oid = u.oid
    JOIN pg_attribute a ON a.attrelid = t.typrelid AND a.attnum > 0
    GROUP BY t.oid) AS definition)
"""


def redefined(before: str, now: str) -> bool:
    """Whether a definition changed; one that is new, or no longer used, changes no stored value."""
    was = _digests(before)
    return any(was.get(oid, digest) != digest for oid, digest in _digests(now).items())


def _digests(text: str) -> dict[str, str]:
    return dict(one.split(":") for one in text.split(",") if one)
