"""Settings of the time machine: the physical log and base backups in object storage."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.settings.declaration import setting


@dataclass(frozen=True, slots=True)
class BackupSettings:
    """The physical log and base backups in a folder or a bucket."""

    url: str | None = setting(
        "HEADRACE_BACKUP_URL",
        None,
        "Location of the backup store: `file:///…`, `s3://…`, `gs://…` or `az://…`. Each cluster "
        "needs its own location, and so does a cluster that was restored. If unset, there are no "
        "backups.",
    )
    slot: str = setting(
        "HEADRACE_BACKUP_SLOT",
        "headrace_backup",
        "Name of the physical replication slot of wal-archiver. It retains the log until the log "
        "is stored; limit it with PostgreSQL's `max_slot_wal_keep_size`.",
    )
    chunk_interval_s: float = setting(
        "HEADRACE_BACKUP_CHUNK_INTERVAL_S",
        0.5,
        "Minimum time between two objects with parts of an unfinished segment, in seconds. Under "
        "load, the commits of this interval may be lost with the primary's disk. A smaller value "
        "loses less, but sends more requests to the object store.",
        least=0,
    )
    synchronous: bool = setting(
        "HEADRACE_BACKUP_SYNCHRONOUS",
        False,
        "Whether wal-archiver stores and confirms the log immediately, so that commits may wait "
        "for it: name its slot in PostgreSQL's `synchronous_standby_names`. Each commit then takes "
        "at least as long as storing an object.",
    )
    put_timeout_s: float = setting(
        "HEADRACE_BACKUP_PUT_TIMEOUT_S",
        60.0,
        "Seconds that one request to the object store may take before it fails and is retried.",
        least=0.1,
    )
    part_bytes: int = setting(
        "HEADRACE_BACKUP_PART_BYTES",
        32 * 1024 * 1024,
        "Size of the parts of a base backup before compression, in bytes. Up to four of them are "
        "in memory.",
        least=64 * 1024,
    )
    rate_kib_s: int | None = setting(
        "HEADRACE_BACKUP_RATE_KIB_S",
        None,
        "Maximum speed of a base backup in KiB per second, to spare the server's disks. If unset, "
        "there is no limit.",
        least=32,
    )
    keep_backups: int = setting(
        "HEADRACE_BACKUP_KEEP_BACKUPS",
        7,
        "Number of backups that `headrace backup expire` keeps, with the log from the oldest of "
        "them on. An incremental backup is kept together with the backups that it builds on.",
        least=1,
    )
    keep_s: int | None = setting(
        "HEADRACE_BACKUP_KEEP_S",
        None,
        "Age in seconds of the oldest moment that must stay restorable. Older backups are removed "
        "only if a newer one is also that old. If unset, only the number of backups counts.",
        least=1,
    )
    binaries: str | None = setting(
        "HEADRACE_BACKUP_BINARIES",
        None,
        "Folder with PostgreSQL's programs (`postgres`, `pg_dump`, `psql`, `pg_combinebackup`) of "
        "the cluster's version, for restores. If unset, Headrace searches the PATH, `pg_config` "
        "and the wheel of `headrace[embedded]`.",
    )
