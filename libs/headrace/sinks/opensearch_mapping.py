"""PostgreSQL's types as OpenSearch's, and rows as documents.

Promises: a document's source has every value as the event has it, and nothing is rounded, cut or
left out. Values that OpenSearch can't index, such as infinity, are in the source only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.sinks.formats.json_values import dumps, plain_row
from headrace.sinks.opensearch_names import EXACT, UNKNOWN, field_name

# Lucene takes terms of up to 32,766 bytes, and a character may need four.
IGNORE_ABOVE = 8191
Properties = dict[str, Any]

_KEYWORD = {"type": "keyword", "ignore_above": IGNORE_ABOVE}
_TEXT = {"type": "text", "fields": {"keyword": _KEYWORD}}
_LONG = {"type": "long"}
# Infinity and NaN, and days that OpenSearch does not know, are in the source only.
_DOUBLE = {"type": "double", "ignore_malformed": True}
_DATE = {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True}
# Exact as a keyword; to search for ranges there is `column.number`, which is rounded.
_NUMERIC = {**_KEYWORD, "fields": {"number": _DOUBLE}}
# Keys of documents are as many as their writers like, and each would become a field.
_DOCUMENT = {"type": "object", "enabled": False}
_BY_TYPE: dict[str, Any] = {
    "boolean": {"type": "boolean"},
    "smallint": _LONG,
    "integer": _LONG,
    "bigint": _LONG,
    "oid": _LONG,
    "real": _DOUBLE,
    "double precision": _DOUBLE,
    "numeric": _NUMERIC,
    "money": _NUMERIC,
    "text": _TEXT,
    "character varying": _TEXT,
    "character": _TEXT,
    "citext": _TEXT,
    "bytea": {"type": "binary"},
    "date": _DATE,
    "timestamp with time zone": _DATE,
    "timestamp without time zone": _DATE,
    "json": _DOCUMENT,
    "jsonb": _DOCUMENT,
    "json[]": _DOCUMENT,
    "jsonb[]": _DOCUMENT,
}
_MODIFIER = re.compile(r"\([^)]*\)")


def properties_of(columns: Iterable[Mapping[str, Any]]) -> Properties:
    """The fields of a table's columns, as a schema event lists them."""
    return {field_name(one["name"]): _field(one) for one in columns} | own_properties()


def own_properties() -> Properties:
    """The fields that every index has: texts of values, and columns whose value is unknown."""
    return {EXACT: _DOCUMENT, UNKNOWN: {"type": "keyword"}}


def _field(column: Mapping[str, Any]) -> Any:
    kind = str(column.get("base_type") or column["data_type"])
    return _BY_TYPE.get(_MODIFIER.sub("", kind).strip(), _KEYWORD)


def document_of(row: Mapping[str, Any], texts: Mapping[str, str]) -> bytes:
    """The document of a complete row; `texts` are PostgreSQL's, of values that JSON can't hold
    completely.
    """
    fields = fields_of(row)
    if texts:
        fields[EXACT] = {field_name(name): text for name, text in texts.items()}
    return dumps(fields)


def fields_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row's values by field, as the contract's JSON has them."""
    return {field_name(name): value for name, value in (plain_row(row) or {}).items()}
