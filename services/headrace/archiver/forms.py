"""Rows of one relation as JSON texts, written by code made for it where they are plain. Pure.

Values have the contract's JSON forms (docs/contract.md), arrays as PostgreSQL's literals. An Insert
message, by far the most frequent, is read and written in one pass; `plain` is the meaning, and the
oracle of the test.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson

from headrace.archive.metadata import ColumnInfo, TableInfo
from headrace.contract import scalars
from headrace.contract.exact import Inexact, native
from headrace.contract.selection import Selection
from headrace.contract.values import Converter, Encoding, ValueOptions, converter, may_be_inexact
from headrace.errors import DecodeError
from headrace.pgoutput.messages import UNCHANGED, Relation, Row
from headrace.postgres.facts import TableFacts

Write = Callable[[bytes], bytes]
# The key's and the row's text; None: the plain way must write it.
Quick = Callable[[bytes], tuple[bytes | None, bytes] | None]
COLUMNS_MAX = 100
FULL_OR_NOTHING = ("f", "n")
_OPTIONS = ValueOptions(encoding=Encoding.JSON)
_NULL = b"null"


def _boolean(value: bytes) -> bytes:
    return b"true" if value == b"t" else b"false"


def _text(value: bytes) -> bytes:
    return orjson.dumps(scalars.text(value))


def _writer(convert: Converter) -> Write:
    """What writes a value's JSON text from PostgreSQL's."""
    if convert is scalars.integer:
        return bytes
    if convert is scalars.boolean:
        return _boolean
    if convert is scalars.text:
        return _text
    dumps = orjson.dumps
    if may_be_inexact(convert):
        return lambda value: dumps(native(convert(value)))
    return lambda value: dumps(convert(value))


def _only_whole(convert: Converter) -> Write:
    """The same, for values that have no exact text beside them: others are left to the plain way."""
    dumps = orjson.dumps

    def write(value: bytes) -> bytes:
        found = convert(value)
        if isinstance(found, Inexact):
            raise DecodeError("a value with an exact text beside it")
        return dumps(found)

    return write


@dataclass(frozen=True, slots=True)
class Form:
    """How rows of a relation are written. A column without a writer is left out everywhere."""

    relation: Relation
    columns: tuple[tuple[bytes, Write | None], ...]
    # Places of the key's columns, in the key's order.
    key: tuple[int, ...]
    info: TableInfo
    quick: Quick | None
    excluded: bool = False
    # Columns whose JSON text may not be all of a value: place, name, conversion.
    inexact: tuple[tuple[int, str, Converter], ...] = ()

    @classmethod
    def of(cls, relation: Relation, facts: TableFacts, selection: Selection) -> Form:
        hidden = selection.hidden_columns(relation.schema, relation.name)
        converters = [
            converter(column.type_oid, _OPTIONS, facts.types.get) for column in relation.columns
        ]
        names = [column.name for column in relation.columns]
        inexact = tuple(
            (place, name, convert)
            for place, (name, convert) in enumerate(zip(names, converters, strict=True))
            if name not in hidden and may_be_inexact(convert)
        )
        columns = tuple(
            (orjson.dumps(name), None if name in hidden else _writer(convert))
            for name, convert in zip(names, converters, strict=True)
        )
        whole = list(columns)
        for place, _, convert in inexact:
            whole[place] = columns[place][0], _only_whole(convert)
        key = _key_places(relation, facts, hidden)
        info = _table_info(relation, facts, hidden, key)
        quick = compiled(relation.relation_id, whole, key)
        return cls(
            relation,
            columns,
            key,
            info,
            quick,
            not selection.wants(relation.schema, relation.name),
            inexact,
        )

    def exact(self, new: Row | None, old: Row | None) -> bytes | None:
        """PostgreSQL's texts of the values whose JSON is not all of them, as the archive's column
        has them.
        """
        sides = {"after": self._texts(new), "before": self._texts(old)} if self.inexact else {}
        found = {side: texts for side, texts in sides.items() if texts}
        return orjson.dumps(found) if found else None

    def _texts(self, row: Row | None) -> dict[str, str]:
        texts: dict[str, str] = {}
        for place, name, convert in self.inexact if row is not None else ():
            value = row[place] if row is not None else None
            if isinstance(value, bytes) and isinstance(found := convert(value), Inexact):
                texts[name] = found.text
        return texts

    @property
    def hidden(self) -> frozenset[int]:
        """Places of the columns that are left out."""
        return frozenset(place for place, (_, write) in enumerate(self.columns) if write is None)

    def plain(self, row: Row) -> tuple[bytes, list[str]]:
        """A row's text, and the names of the columns that PostgreSQL did not send."""
        parts, unchanged = [], []
        for (name, write), value, column in zip(
            self.columns, row, self.relation.columns, strict=True
        ):
            if write is None:
                continue
            if value is UNCHANGED:
                unchanged.append(column.name)
            else:
                parts.append(name + b":" + (_NULL if value is None else write(value)))
        return b"{" + b",".join(parts) + b"}", unchanged

    def identity(self, row: Row) -> bytes | None:
        """The replica identity's columns of an old key."""
        flags = (column.is_key for column in self.relation.columns)
        values = zip(self.columns, row, flags, strict=True)
        return _joined([(name, write, value) for (name, write), value, is_key in values if is_key])

    def key_of(self, row: Row, older: Row | None = None) -> bytes | None:
        """The key's columns of a row; what it does not have, an older one may."""
        found = []
        for place in self.key:
            value = row[place]
            if value is UNCHANGED and older is not None:
                value = older[place]
            found.append((*self.columns[place], value))
        return _joined(found)


def _joined(values: Sequence[tuple[bytes, Write | None, object]]) -> bytes | None:
    parts = [
        name + b":" + (write(value) if isinstance(value, bytes) else _NULL)
        for name, write, value in values
        if write is not None and value is not UNCHANGED
    ]
    return b"{" + b",".join(parts) + b"}" if parts else None


def _key_places(relation: Relation, facts: TableFacts, hidden: frozenset[str]) -> tuple[int, ...]:
    """FULL flags every column, NOTHING none: there the primary key must come from the catalog, if
    it can.
    """
    places = {
        column.name: place
        for place, column in enumerate(relation.columns)
        if column.name not in hidden
    }
    if (
        relation.replica_identity in FULL_OR_NOTHING
        and facts.primary_key
        and set(facts.primary_key) <= set(places)
    ):
        return tuple(places[name] for name in facts.primary_key)
    return tuple(
        places[column.name]
        for column in relation.columns
        if column.is_key and column.name in places
    )


def _table_info(
    relation: Relation, facts: TableFacts, hidden: frozenset[str], key: tuple[int, ...]
) -> TableInfo:
    columns = tuple(
        ColumnInfo(
            column.name,
            column.type_oid,
            column.type_modifier,
            facts.type_names.get((column.type_oid, column.type_modifier), "???"),
            place in key,
            _filled(facts, column.name),
        )
        for place, column in enumerate(relation.columns)
        if column.name not in hidden
    )
    names = tuple(relation.columns[place].name for place in key)
    return TableInfo(relation.schema, relation.name, relation.relation_id, 0, names, columns)


def _filled(facts: TableFacts, name: str) -> bool:
    known = facts.columns.get(name)
    # Where the catalog has moved on, nobody can say any more what adding the column did.
    return known is None or not known.number or known.filled


_HEAD = """
def read(data):
    try:
        if head(data) != expected:
            return None
        at = 8"""
_VALUE = """
        if data[at] == 116:
            start = at + 5
            at = start + size(data, at)[0]
            v{place} = {write}
        elif data[at] == 110:
            v{place} = b"null"
            at += 1
        else:
            return None"""
_HIDDEN = """
        at += 5 + size(data, at)[0] if data[at] == 116 else 1"""
_END = """
        if at != len(data):
            return None
    except errors:
        return None
    return {key}, {row}
"""
_INLINE: dict[Write, str] = {
    bytes: "data[start:at]",
    _text: "dumps(data[start:at].decode())",
    _boolean: 'b"true" if data[start] == 116 else b"false"',
}


def compiled(
    relation_id: int, columns: Sequence[tuple[bytes, Write | None]], key: Sequence[int]
) -> Quick | None:
    """A reader and writer in one for Insert messages of these columns."""
    if len(columns) > COLUMNS_MAX:
        return None
    body = [_HEAD]
    names: dict[str, object] = {
        "head": struct.Struct(">xIBH").unpack_from,
        "expected": (relation_id, ord("N"), len(columns)),
        "size": struct.Struct(">xI").unpack_from,
        "dumps": orjson.dumps,
        "errors": (IndexError, ValueError, struct.error, DecodeError),
    }
    shown = []
    for place, (_, write) in enumerate(columns):
        if write is None:
            body.append(_HIDDEN)
            continue
        shown.append(place)
        names[f"w{place}"] = write
        body.append(
            _VALUE.format(place=place, write=_INLINE.get(write, f"w{place}(data[start:at])"))
        )
    row, key_text = _template(columns, shown), _template(columns, key) if key else "None"
    source = "".join(body) + _END.format(key=key_text, row=row)
    exec(compile(source, f"<archived rows of relation {relation_id}>", "exec"), names)  # noqa: S102  # names alone, as literals
    read: Quick = names["read"]  # type: ignore[assignment]  # it was defined just now
    return read


def _template(columns: Sequence[tuple[bytes, Write | None]], places: Sequence[int]) -> str:
    """The expression of a JSON object of these columns."""
    texts = [columns[place][0].replace(b"%", b"%%") + b":%b" for place in places]
    values = "".join(f"v{place}, " for place in places)
    return f"{b'{' + b','.join(texts) + b'}'!r} % ({values})"
