"""Session settings of the connections that read a table for a snapshot.

Rows must come in storage order at every attempt, so the planner may only use a TID range scan; no
statement may run forever; names are looked up in pg_catalog only.
`headrace.postgres.connection.connect_lastingly` keeps the server from ending long transactions.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headrace.contract.scalars import NAME_SETTINGS

HOLDER_SESSION: Final[Mapping[str, str]] = MappingProxyType(
    {
        **NAME_SETTINGS,
        # For catalog queries; a COPY has its own.
        "statement_timeout": "60s",
        # `quote_literal` relies on it: otherwise a backslash in a literal would escape.
        "standard_conforming_strings": "on",
        # A policy that hides rows must be an error, because the change stream contains them.
        "row_security": "off",
    }
)
COPY_SESSION: Final[Mapping[str, str]] = MappingProxyType(
    {
        **HOLDER_SESSION,
        "enable_seqscan": "off",
        "enable_indexscan": "off",
        "enable_indexonlyscan": "off",
        "enable_bitmapscan": "off",
        # Parallel workers deliver rows in any order.
        "max_parallel_workers_per_gather": "0",
        # A synchronized scan starts somewhere in the middle of the table.
        "synchronize_seqscans": "off",
        # While an ALTER or TRUNCATE waits for the holder, every later reader waits behind it,
        # including tasks.
        "lock_timeout": "3s",
    }
)
