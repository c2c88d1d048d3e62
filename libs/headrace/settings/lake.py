"""Settings of the lake: the source's tables as Iceberg tables."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.settings.declaration import MIB, setting


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The source's tables as Iceberg tables in a folder or a bucket."""

    url: str | None = setting(
        "HEADRACE_LAKE_URL",
        None,
        "Location of the lake: `file:///…`, `s3://…`, `gs://…` or `az://…`. The lake is built "
        "from the archive, so `HEADRACE_ARCHIVE_URL` is required, too. Unset, there is no lake.",
    )
    catalog: str | None = setting(
        "HEADRACE_LAKE_CATALOG",
        None,
        "The lake's catalog: `sqlite:///path` for a file on this machine, or `postgresql://…` "
        "for a database, which several machines can use. The default for a lake in a local folder "
        "is `catalog.db` in that folder; other lakes need this setting.",
        secret=True,
    )
    flush_interval_s: float = setting(
        "HEADRACE_LAKE_FLUSH_INTERVAL_S",
        2.0,
        "Minimum time between two cuts, in seconds. A smaller value makes the lake more current, "
        "and creates more and smaller files, which cost readers time until they are compacted.",
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
        "Maximum age of the cuts that readers can go back to, in seconds; five days by default. "
        "It matters for tables that seldom change, whose former files it releases. The last cut "
        "and tagged snapshots are always kept.",
        least=60,
    )
    cache_bytes: int = setting(
        "HEADRACE_LAKE_CACHE_BYTES",
        64 * MIB,
        "Memory for the key columns of data files, in bytes. Updates and deletes are found in "
        "these columns. If the keys of a table don't fit, they are read from the lake again for "
        "each batch.",
        least=MIB,
    )
