"""Session settings of the connections that read a table for a snapshot.

The order of the storage must be the order of the rows, at every attempt, so only a TID range scan
is left to the planner; no statement may run without end; names resolve in pg_catalog alone. That
the server doesn't end the long transactions is `headrace.postgres.connection.connect_lastingly`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headrace.contract.scalars import NAME_SETTINGS

HOLDER_SESSION: Final[Mapping[str, str]] = MappingProxyType(
    {
        **NAME_SETTINGS,
        # Of the catalog's queries; a COPY has one of its own.
        "statement_timeout": "60s",
        "standard_conforming_strings": "on",
        # A policy that hides rows must be an error, since the stream of changes has them.
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
        "max_parallel_workers_per_gather": "0",
        "synchronize_seqscans": "off",
        # An ALTER or TRUNCATE that waits for the holder has every later reader wait behind it,
        # tasks included.
        "lock_timeout": "3s",
    }
)
