"""The lake as its catalog has it: the cuts that readers can go back to, and the tables' files.

Cuts are read from the catalog in this process. The tables' figures are in Iceberg's metadata, whose
packages are large: a command reads them, and its output is kept for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import orjson
from aiohttp import web

from headrace.console.access import Caller
from headrace.console.command import TIMEOUT_S, output_of
from headrace.console.json_answers import answer, caller_of
from headrace.console.last_known import LastKnown, stamp
from headrace.console.problem import not_found, unavailable
from headrace.console.suite_view import SuiteView
from headrace.console.waterline import STATES
from headrace.errors import SettingError, describe
from headrace.lake.catalog import Cut
from headrace.lake.errors import LakeError
from headrace.lake.opening import check_place, local_paths, open_catalog
from headrace.lake.requests import requests
from headrace.lsn import format_lsn
from headrace.settings import Settings

CUTS_MAX = 100
CUTS_S = 1.0
TABLES_S = 15.0
Document = dict[str, Any]


class LakeView:
    def __init__(self, settings: Settings, suite: SuiteView) -> None:
        self._settings = settings
        self._suite = suite
        # In a thread: the catalog may be a database elsewhere, and its driver blocks.
        self._cuts: LastKnown[tuple[list[Cut], list[Document]]] = LastKnown(
            "lake", lambda: asyncio.to_thread(self._read_cuts), CUTS_S
        )
        self._tables: LastKnown[list[Document]] = LastKnown(
            "lake", self._read_tables, TABLES_S, TIMEOUT_S
        )

    async def page(self, request: web.Request) -> web.Response:
        """The cuts, and how far the lake-writer is behind."""
        self._check()
        cuts, copies = await self._cuts.current() or ([], [])
        newest = cuts[0] if cuts else None
        age = None
        if newest is not None:
            age = round(max(0.0, time.time() - newest.made_us / 1e6), 3)
        return answer(
            {
                **self._head(self._cuts),
                "place": self._settings.lake.url,
                "age_s": age,
                "writer": self._writer(caller_of(request)),
                "cuts": _documents(cuts),
                "copies": copies,
            }
        )

    async def tables(self, _: web.Request) -> web.Response:
        """The tables' rows, files and bytes."""
        self._check()
        items = await self._tables.current() or []
        return answer({**self._head(self._tables), "items": items})

    def _check(self) -> None:
        try:
            check_place(self._settings)
        except SettingError as error:
            raise not_found(
                f"There is no lake: {describe(error)}.",
                f"{error.remedy or ''} See docs/lake.md.".strip(),
            ) from error

    def _head(self, known: LastKnown[Any]) -> Document:
        head = self._suite.head()
        return {**head, "stale": [*head["stale"], *known.stale()]}

    def _writer(self, caller: Caller) -> Document | None:
        """The lake-writer's own figures; None if it does not report."""
        service = ((self._suite.status_for(caller) or {}).get("services") or {}).get("lake-writer")
        if service is None:
            return None
        figures = service["figures"]
        return {
            "state": STATES[service["state"]],
            "reasons": [str(reason) for reason in service["reasons"].values()],
            "lag_s": figures.get("lake_lag_seconds"),
            "lag_bytes": _whole(figures, "lake_lag_bytes"),
            "behind_files": _whole(figures, "lake_behind_files"),
            "parked_tables": _whole(figures, "lake_parked_tables"),
            "data_files": _whole(figures, "lake_data_files"),
            "delete_files": _whole(figures, "lake_delete_files"),
            "deleted_ratio": figures.get("lake_deleted_ratio"),
        }

    def _read_cuts(self) -> tuple[list[Cut], list[Document]]:
        # Opening would create a missing file, and an empty lake with it.
        for path in local_paths(self._settings):
            if not path.exists():
                raise LakeError(f"{path} does not exist yet")
        slot = self._settings.source.slot
        # Opened for each reading: a connection that is kept may break unseen.
        catalog = open_catalog(self._settings)
        try:
            cuts = list(catalog.cuts(slot, CUTS_MAX))
            waiting = [one for one in requests(catalog, slot).values() if one.open]
        finally:
            catalog.close()
        copies = [
            {"table": str(one.table), "state": str(one.state), "rows": str(one.rows)}
            for one in waiting
        ]
        return cuts, copies

    async def _read_tables(self) -> list[Document]:
        code, out, err = await output_of("lake", "ls", "--json")
        # The end of the command's output has the reason; what comes before is progress.
        if code:
            raise unavailable(err.strip().removeprefix("headrace: ")[-300:])
        return [_table(orjson.loads(line)) for line in out.splitlines() if line]


def _documents(cuts: list[Cut]) -> list[Document]:
    """The cuts, each with the tables that it changed; unknown for the first one."""
    found = []
    # The newest comes first, so the one before is the next in the list.
    for cut, before in zip(cuts, [*cuts[1:], None], strict=True):
        changed = None
        if before is not None:
            changed = sorted({name for name, _ in cut.tables.items() ^ before.tables.items()})
        found.append(
            {
                "number": str(cut.number),
                "lsn": format_lsn(cut.lsn),
                "made": stamp(cut.made_us / 1e6),
                "commit": None if cut.commit_us is None else stamp(cut.commit_us / 1e6),
                "archive_file": str(cut.archive_file),
                "tables": len(cut.tables),
                "changed": changed,
            }
        )
    return found


def _table(found: Mapping[str, Any]) -> Document:
    return {
        "table": str(found["table"]),
        "rows": str(found["rows"]),
        "deleted_rows": str(found["deleted_rows"]),
        "files": str(found["files"]),
        "delete_files": str(found["delete_files"]),
        "bytes": str(found["bytes"]),
        "snapshots": str(found["snapshots"]),
        "changed": found["changed"],
        "own": bool(found["own"]),
        "source": found["source"],
    }


def _whole(figures: Mapping[str, Any], key: str) -> str | None:
    value = figures.get(key)
    return None if value is None else str(int(value))
