"""The types of DuckDB that hold PostgreSQL's values."""

from __future__ import annotations

from headrace.mirror.native_types import Dialect, Native

DIALECT = Dialect(
    types={
        Native.BOOL: "BOOLEAN",
        Native.INT2: "SMALLINT",
        Native.INT4: "INTEGER",
        Native.INT8: "BIGINT",
        Native.OID: "UINTEGER",
        Native.FLOAT: "DOUBLE",
        Native.BYTES: "BLOB",
        Native.DECIMAL: "DECIMAL({digits},{scale})",
        Native.DATE: "DATE",
        Native.TIMESTAMP: "TIMESTAMP",
        Native.TIMESTAMPTZ: "TIMESTAMPTZ",
        Native.TIME: "TIME",
        Native.UUID: "UUID",
        Native.TEXT: "VARCHAR",
    },
    digits_max=38,
    scale_max=38,
    unusual_floats=True,
    infinite_dates=True,
    year_max=290_000,
)
