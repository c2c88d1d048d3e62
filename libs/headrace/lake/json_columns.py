"""The members of JSON objects as columns: by Arrow's JSON reader, or apart from it, one by one.

Arrow's reader is fast, and needs values that have the JSON type of their column. It can't keep the
text of a document. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import json

from headrace.lake.json_members import Members
from headrace.lake.typed_values import Array, Kind, only_chunk, to_list, unquoted

pc: Any = pyarrow.compute


class JsonColumns:
    """Reads columns of these types as Arrow's reader parses them, and those of `apart` as texts.

    The texts of `documents`, which must be apart, keep their quotes.
    """

    def __init__(
        self, kinds: Mapping[str, Kind], apart: Collection[str], documents: Collection[str]
    ) -> None:
        self._documents = documents
        self._apart = [name for name in kinds if name in apart]
        self._members = Members(self._apart)
        self._parsed = pa.schema(
            [pa.field(name, kind) for name, kind in kinds.items() if name not in apart]
        )
        self._options = json.ParseOptions(
            explicit_schema=self._parsed, unexpected_field_behavior="ignore"
        )

    def read(self, texts: Array) -> dict[str, Array] | None:
        """None if a column that isn't apart has a value of another JSON type."""
        found: dict[str, Array] = {}
        if len(self._parsed):
            table = self._by_arrow(texts)
            if table is None:
                return None
            found = {name: only_chunk(table[name]) for name in self._parsed.names}
        if self._apart:
            columns = self._members.columns(to_list(texts))
            for name, members in zip(self._apart, columns, strict=True):
                found[name] = pa.array(self._forms(name, members), pa.string())
        return found

    def _by_arrow(self, texts: Array) -> pa.Table | None:
        whole = pc.fill_null(texts, "{}") if texts.null_count else texts
        lines = pa.ListArray.from_arrays([0, len(texts)], whole)
        try:
            data = pc.binary_join(lines, "\n")[0].as_buffer()
            return json.read_json(
                pa.BufferReader(data),  # type: ignore[arg-type]  # the stubs know files only
                # One block: a row must not be cut, however large it is.
                read_options=json.ReadOptions(use_threads=False, block_size=data.size + 1),
                parse_options=self._options,
            )
        except pa.ArrowInvalid:
            return None

    def _forms(self, name: str, members: list[str | None]) -> list[str | None]:
        if name in self._documents:
            return members
        return [None if member is None else unquoted(member) for member in members]
