"""Settings of the lake: the source's tables as Iceberg tables."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.settings.choices import LakeEngine
from headrace.settings.declaration import MIB, setting


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The source's tables as Iceberg tables in a folder or a bucket."""

    url: str | None = setting(
        "HEADRACE_LAKE_URL",
        None,
        "Location of the lake: `file:///…`, `s3://…`, `gs://…` or `az://…`. The lake is built from "
        "the archive, so `HEADRACE_ARCHIVE_URL` is required, too. If unset, there is no lake.",
    )
    catalog: str | None = setting(
        "HEADRACE_LAKE_CATALOG",
        None,
        "The lake's catalog: `sqlite:///path` for a file on this machine, or `postgresql://…` "
        "for a database, which several machines can use. The default for a lake in a local folder "
        "is `catalog.db` in that folder; other lakes need this setting.",
        secret=True,
    )
    engine: LakeEngine = setting(
        "HEADRACE_LAKE_ENGINE",
        LakeEngine.SPARK,
        "Engine that turns rows into files. `spark` uses Spark for everything: a local session, "
        "which starts with the first batch, or the server in `SPARK_REMOTE`. `inline` runs in the "
        "lake-writer and needs no Java. `auto` uses Spark for large tables and large batches, and "
        "works inline otherwise. All engines create the same tables. All but `inline` need "
        "`headrace[spark]`.",
    )
    spark_rows_min: int = setting(
        "HEADRACE_LAKE_SPARK_ROWS_MIN",
        200_000,
        "Minimum number of rows in a batch for which `HEADRACE_LAKE_ENGINE=auto` uses Spark. A "
        "smaller value moves more work out of the lake-writer, but adds the time of a Spark job to "
        "smaller batches.",
        least=0,
    )
    spark_ranges_min: int = setting(
        "HEADRACE_LAKE_SPARK_RANGES_MIN",
        4,
        "Minimum size of a table that `HEADRACE_LAKE_ENGINE=auto` copies with Spark, in ranges of "
        "`HEADRACE_SNAPSHOT_RANGE_BYTES`.",
        least=0,
    )
    token: str | None = setting(
        "HEADRACE_LAKE_TOKEN",
        None,
        "Bearer token for the lake's Iceberg REST endpoint on lake-writer's port. If unset, the "
        "endpoint answers only on this machine, and only if the port listens on a loopback "
        "address.",
        secret=True,
    )
    flush_interval_s: float = setting(
        "HEADRACE_LAKE_FLUSH_INTERVAL_S",
        2.0,
        "Minimum time between two cuts, in seconds. A smaller value makes the lake more current. "
        "It also creates more and smaller files, which slow down readers until they are compacted.",
        least=0.1,
    )
    keep_cuts: int = setting(
        "HEADRACE_LAKE_KEEP_CUTS",
        100,
        "Number of cuts that readers can go back to. Tagged snapshots are kept in addition. A "
        "larger value keeps more files and enlarges each table's metadata.",
        least=2,
    )
    keep_s: float = setting(
        "HEADRACE_LAKE_KEEP_S",
        432_000.0,
        "Maximum age of the cuts that readers can go back to, in seconds; five days by default. It "
        "matters for tables that seldom change, because it releases their old files. The last cut "
        "and tagged snapshots are always kept.",
        least=60,
    )
    cache_bytes: int = setting(
        "HEADRACE_LAKE_CACHE_BYTES",
        64 * MIB,
        "Memory for the key columns of data files, in bytes. The lake-writer uses them to find the "
        "rows of updates and deletes. If the keys of a table don't fit, it reads them from the "
        "lake again for each batch.",
        least=MIB,
    )
    compact_target_bytes: int = setting(
        "HEADRACE_LAKE_COMPACT_TARGET_BYTES",
        128 * MIB,
        "Size of the data files that compaction writes, in bytes; files of half this size are left "
        "as they are. Larger files are faster to read as a whole, but searching them for keys "
        "takes more memory.",
        least=64 * 1024,
    )
    compact_files_min: int = setting(
        "HEADRACE_LAKE_COMPACT_FILES_MIN",
        8,
        "Number of small files of similar size that are joined into one. A smaller value leaves "
        "fewer files to read, but rewrites each row more often.",
        least=2,
    )
    compact_deleted_share: float = setting(
        "HEADRACE_LAKE_COMPACT_DELETED_SHARE",
        0.2,
        "Minimum share of deleted rows at which a data file is rewritten without them.",
        least=0.01,
    )
    compact_bytes_max: int = setting(
        "HEADRACE_LAKE_COMPACT_BYTES_MAX",
        128 * MIB,
        "Maximum bytes that compaction reads between two cuts, so that it doesn't delay cuts; a "
        "file is always read as a whole. 0 turns compaction off.",
        least=0,
    )
    cleanup_interval_s: float = setting(
        "HEADRACE_LAKE_CLEANUP_INTERVAL_S",
        600.0,
        "Seconds between two searches for files that no kept snapshot refers to. A search lists "
        "all files of the lake.",
        least=0.1,
    )
    grace_s: float = setting(
        "HEADRACE_LAKE_GRACE_S",
        3600.0,
        "Seconds for which a file is kept after nothing refers to it any longer. Must be longer "
        "than the longest query of a reader.",
        least=0.1,
    )
    keep_dropped_s: float = setting(
        "HEADRACE_LAKE_KEEP_DROPPED_S",
        604_800.0,
        "Seconds for which the files of a table that left the lake are kept; seven days by "
        "default.",
        least=0.1,
    )
