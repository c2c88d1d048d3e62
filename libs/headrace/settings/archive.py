"""Settings of the archive: the change log as files in object storage."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.settings.declaration import MIB, setting


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """The change log as numbered Parquet files in object storage."""

    url: str | None = setting(
        "HEADRACE_ARCHIVE_URL",
        None,
        "Location of the archive: `file:///…`, `s3://…`, `gs://…` or `az://…`. Set it for the "
        "archiver and for wal-reader, which learns from it that there is an archiver to wait for. "
        "If unset, there is no archive.",
    )
    required: bool = setting(
        "HEADRACE_ARCHIVE_REQUIRED",
        False,
        "Whether PostgreSQL's slot waits for the archive. When `true`, changes are confirmed only "
        "once they are archived, so the slot retains WAL while the archive is unavailable. When "
        "`false`, confirmation continues without it after `HEADRACE_ARCHIVE_PATIENCE_S`.",
    )
    patience_s: float = setting(
        "HEADRACE_ARCHIVE_PATIENCE_S",
        10.0,
        "Seconds to wait for an optional archiver that is late or restarting. After that, "
        "confirmation continues without it and the archive may have a gap. A larger value survives "
        "longer outages and retains more WAL meanwhile.",
        least=0.1,
    )
    file_rows_max: int = setting(
        "HEADRACE_ARCHIVE_FILE_ROWS_MAX",
        500_000,
        "Maximum number of changes in an archive file. Larger files are cheaper to store and scan, "
        "and need more memory to write. A transaction is split only if it is larger than a file.",
        least=1,
    )
    file_bytes_max: int = setting(
        "HEADRACE_ARCHIVE_FILE_BYTES_MAX",
        32 * MIB,
        "Maximum uncompressed size of the rows in an archive file, in bytes.",
        least=1024,
    )
    file_age_max_s: float = setting(
        "HEADRACE_ARCHIVE_FILE_AGE_MAX_S",
        2.0,
        "Maximum age of an incomplete archive file before it is written, in seconds. This is how "
        "far the archive is behind when traffic is low. A larger value creates fewer, larger "
        "files; with a required archive, PostgreSQL is confirmed that much later.",
        least=0.01,
    )
    put_timeout_s: float = setting(
        "HEADRACE_ARCHIVE_PUT_TIMEOUT_S",
        30.0,
        "Seconds that one request to the object store may take before it fails and is retried.",
        least=0.1,
    )
    keep_s: int | None = setting(
        "HEADRACE_ARCHIVE_KEEP_S",
        None,
        "Age in seconds after which the archiver removes files. Files that a registered reader "
        "hasn't read are kept. If unset, nothing is removed.",
        least=1,
    )
