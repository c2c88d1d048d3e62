"""The values of a source's row as an event has them, from PostgreSQL's text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.contract.exact import ExactText, Inexact, native
from headrace.contract.values import ArrayForm, Converter, Encoding, ValueOptions, converter
from headrace.spark.source import HeldSnapshot


class SourceValues:
    """Converts rows of a snapshot; `names` are the columns, in the order of the texts."""

    def __init__(self, held: HeldSnapshot, names: Sequence[str], arrays: ArrayForm) -> None:
        oids = {column.name: column.type_oid for column in held.columns}
        options = ValueOptions(Encoding.MSGPACK, arrays)
        self._makers = [(name, converter(oids[name], options, held.types.get)) for name in names]

    def of(self, row: Iterable[str | None]) -> Mapping[str, Any]:
        """The values by column, in the contract's forms."""
        return {
            name: _value(make, text) for (name, make), text in zip(self._makers, row, strict=True)
        }

    def with_texts(self, row: Iterable[str | None]) -> tuple[dict[str, Any], dict[str, str]]:
        """The native values by column, and PostgreSQL's text of those whose native form loses
        something, as an event has both.
        """
        values: dict[str, Any] = {}
        texts = {}
        for (name, make), text in zip(self._makers, row, strict=True):
            value = None if text is None else make(text.encode())
            values[name] = native(value)
            if isinstance(value, Inexact):
                texts[name] = value.text
        return values, texts


def _value(make: Converter, text: str | None) -> Any:
    if text is None:
        return None
    value = make(text.encode())
    # A document's native form may lose information.
    if isinstance(value, Inexact):
        return ExactText(value.text)
    return value
