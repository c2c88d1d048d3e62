"""The options of a DataFrame's reader, and the plan of its copy. Pure, except that it reads the
environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from headrace.contract.values import ArrayForm, Encoding, JsonForm
from headrace.errors import HeadraceError
from headrace.settings import Settings, SnapshotValues, load
from headrace.spark.plan import SnapshotPlan
from headrace.spark.ranges import cut_ranges
from headrace.spark.request import SnapshotRequest
from headrace.spark.source import HeldSnapshot

HOLD_S = 60.0
# PostgreSQL's default; with another block size, ranges only differ in size.
PAGE_BYTES = 8192


class TableOptionError(HeadraceError):
    """An option of `headrace.table` is missing or not valid."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The reader's options."""

    request: SnapshotRequest
    publication: str
    hold_s: float

    @classmethod
    def parse(cls, options: dict[str, str]) -> TableOptions:
        name = options.get("table")
        if not name:
            raise TableOptionError(
                "headrace.table has no table", remedy='Add .option("table", "users").'
            )
        try:
            hold_s = float(options.get("hold_s", HOLD_S))
        except ValueError as error:
            raise TableOptionError("hold_s is not a number", remedy="Give seconds.") from error
        request = SnapshotRequest(name, options.get("schema", "public"), name)
        return cls(request, options.get("publication", ""), hold_s)

    def settings(self) -> Settings:
        """The source's address, from the environment."""
        settings = load(os.environ)
        return replace(settings, source=replace(settings.source, publication=self.publication))


def plan_of(held: HeldSnapshot, settings: Settings) -> SnapshotPlan:
    """A plan whose tasks are ranges; everything about messages is left empty."""
    ranges = cut_ranges(held.storages, max(1, settings.snapshot.range_bytes // PAGE_BYTES))
    return SnapshotPlan(
        snapshot_id="",
        exported=held.exported,
        lsn="",
        token="",
        table="",
        columns=held.columns,
        key=held.key,
        types=held.types,
        conditions=held.conditions,
        tasks=tuple((page_range,) for page_range in ranges),
        permits="",
        encoding=Encoding.MSGPACK,
        arrays=ArrayForm.LITERAL,
        json_values=JsonForm.TEXT,
        int8_as_string=False,
        values=SnapshotValues.TYPED,
        zstd=False,
        chunk_rows_max=0,
        payload_bytes_max=0,
        large_bucket="",
    )
