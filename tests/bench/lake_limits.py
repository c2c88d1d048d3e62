"""The limits of the lake's figures: the same rows and changes by pyarrow, PyIceberg and DuckLake,
and a scan of the same rows freshly written.

Rows come from the lake that was measured. Each limit has what it needs in memory already.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import In

from headrace.lake.compaction import CompactionLimits, compact
from headrace.settings import load
from tests.bench.result import Figure, within
from tests.oracle.lake import ForeignLake, connect
from tests.support.local_lake import LocalLake

TABLE = "public.measured"
COLUMNS = 'id, n, name, amount, "at"'
CORES = 2
ROUNDS = 3
CUTS = 1000
GROUP_ROWS = 131_072


@dataclass(frozen=True, slots=True)
class Cost:
    """The time that some work took, and its processor time."""

    seconds: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Limits:
    """The costs of others on the same cores."""

    write: Cost
    rows: int
    # By the number of changes.
    overwrite: dict[int, Cost]
    ducklake: dict[int, Cost] | None


def measure(lake: ForeignLake, folder: Path, count: int, changes: Sequence[int]) -> Limits:
    """The limits of one engine's figures, on the rows of its lake."""
    rows = lake.arrow(TABLE, f"SELECT {COLUMNS} FROM lake WHERE id <= {count} ORDER BY id")
    place = folder / "limits"
    place.mkdir()
    try:
        write = _best(lambda: _write(rows, place))
        overwrite = _overwrites(rows, place, changes)
        return Limits(write, rows.num_rows, overwrite, _ducklake(rows, place, changes))
    finally:
        shutil.rmtree(place)


def _once(work: Callable[[], object]) -> Cost:
    began, cpu = time.monotonic(), time.process_time()
    work()
    return Cost(time.monotonic() - began, time.process_time() - cpu)


def _best(work: Callable[[], object]) -> Cost:
    return min((_once(work) for _ in range(ROUNDS)), key=_seconds)


def _seconds(cost: Cost) -> float:
    return cost.seconds


def _write(rows: pa.Table, folder: Path) -> None:
    """As data files of the lake are written, by as many threads as there are cores."""
    share = -(-rows.num_rows // CORES)

    def write(number: int) -> None:
        pq.write_table(
            rows.slice(number * share, share),
            folder / f"rows-{number}.parquet",
            row_group_size=GROUP_ROWS,
            compression="zstd",
            compression_level=1,
        )

    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(write, range(CORES)))


def _changed(rows: pa.Table, count: int) -> pa.Table:
    """As many rows as that, spread over the table, each with another value."""
    chosen = rows.take(np.arange(count) * max(1, rows.num_rows // count))
    values = pa.compute.add(chosen.column("n"), 1).cast(pa.int32())
    return chosen.set_column(1, chosen.schema.field("n"), values)


def _overwrites(rows: pa.Table, folder: Path, changes: Sequence[int]) -> dict[int, Cost]:
    """PyIceberg replaces the rows with these keys, or all rows, whichever is faster."""
    catalog = SqlCatalog(
        "limits", uri=f"sqlite:///{folder}/limits.db", warehouse=f"file://{folder}"
    )
    catalog.create_namespace("public")
    table = catalog.create_table(TABLE, rows.schema)
    table.append(rows)
    # Its types lack the call that its documentation shows.
    matching: Any = In
    found = {}
    for count in changes:
        changed = _changed(rows, count)
        ids = changed.column("id").to_pylist()

        def some() -> None:
            table.overwrite(changed, matching("id", ids))  # noqa: B023  # called in this round

        def everything() -> None:
            kept = table.scan().to_arrow()
            gone = pa.compute.is_in(kept.column("id"), changed.column("id").combine_chunks())  # noqa: B023
            left = kept.filter(pa.compute.invert(gone))
            table.overwrite(pa.concat_tables([left, changed.cast(left.schema)]))  # noqa: B023

        found[count] = min(_once(some), _once(everything), key=_seconds)
    catalog.close()
    return found


def _ducklake(rows: pa.Table, folder: Path, changes: Sequence[int]) -> dict[int, Cost] | None:
    """DuckLake updates the same rows; None if its extension is not installed."""
    if find_spec("duckdb_extension_ducklake") is None:
        return None
    database = connect("ducklake")
    database.execute(f"ATTACH 'ducklake:{folder}/duck.db' AS duck (DATA_PATH '{folder}/duck/')")
    database.register("rows", rows)
    database.execute("CREATE TABLE duck.measured AS SELECT * FROM rows")
    found = {}
    for count in changes:
        database.register("changed", _changed(rows, count))
        update = "UPDATE duck.measured AS t SET n = c.n FROM changed c WHERE t.id = c.id"
        found[count] = _once(lambda: database.execute(update))  # noqa: B023  # called here
    database.close()
    return found


def scans(folder: Path, rows: int) -> list[Figure]:
    """A scan after many cuts, with compaction, compared with the same rows freshly written."""
    lakes = folder / "scans"
    lakes.mkdir()
    lake = LocalLake(lakes / "used")
    lake.create(rows=rows)
    limits = CompactionLimits.of(load({}).lake)
    rng = np.random.default_rng(5)
    for number in range(CUTS):
        first = rows + number * 20
        lake.insert(range(first, first + 20))
        lake.update(np.unique(rng.integers(0, rows, 100)).tolist(), f"cut {number}")
        lake.cut()
        compact(lake.files, lake.writer, limits)
    lake.cut()
    used = ForeignLake(lakes / "used")
    name = next(iter(used.locations()))
    everything = used.arrow(name, "SELECT id, note FROM lake")
    LocalLake(lakes / "fresh").create_with(everything)
    scan = "SELECT count(*), sum(id), max(note) FROM lake"
    costs = {}
    for each in ("used", "fresh"):
        reader = ForeignLake(lakes / each)
        costs[each] = _best(lambda: reader.arrow(name, scan))  # noqa: B023  # called in this round
    shutil.rmtree(lakes)
    count = everything.num_rows
    title = f"lake: scan of {count:,} rows after {CUTS:,} cuts"
    cpu = {each: cost.cpu_s / count * 1e6 for each, cost in costs.items()}
    seconds, fresh_seconds = costs["used"].seconds, costs["fresh"].seconds
    figure = within(title, seconds, "s", fresh_seconds, "freshly written", 1.5)
    return [replace(figure, cpu_us=cpu)]
