"""Settings of snapshots, and of the Spark that copies tables."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.settings.choices import SnapshotSpark, SnapshotValues
from headrace.settings.declaration import MIB, setting


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """How snapshot-responder copies tables, and the Spark that it uses."""

    spark_remote: str | None = setting(
        "SPARK_REMOTE",
        None,
        "URL of a Spark Connect server (`sc://host:15002`). If unset, snapshot-responder and "
        "lake-writer each start a local Spark when they need one.",
    )
    spark_master: str = setting(
        "HEADRACE_SPARK_MASTER",
        "local[2,4]",
        "Master URL of the local Spark; ignored with `SPARK_REMOTE`. `local[2,4]` runs two tasks "
        "in parallel and tries each up to four times. More tasks copy faster and put more load on "
        "PostgreSQL.",
    )
    spark_memory_mib: int = setting(
        "HEADRACE_SPARK_MEMORY_MIB",
        512,
        "Heap of the local Spark's JVM in MiB. Rows don't pass through the JVM, so large tables "
        "don't need more.",
        least=512,
    )
    spark: SnapshotSpark = setting(
        "HEADRACE_SNAPSHOT_SPARK",
        SnapshotSpark.AUTO,
        "Snapshots that run in Spark. With `auto`, a table of at most "
        "`HEADRACE_SNAPSHOT_RANGE_BYTES` doesn't wait for a local Spark that is not running: a "
        "Python process copies the table in the same way, and Spark starts afterwards, for later "
        "snapshots. `large` doesn't start Spark afterwards, which saves its memory if all tables "
        "are small. With `always`, every snapshot waits for Spark. With `SPARK_REMOTE`, every "
        "snapshot runs there.",
    )
    spark_start_timeout_s: float = setting(
        "HEADRACE_SPARK_START_TIMEOUT_S",
        90.0,
        "Seconds to wait for Spark to start before the snapshot fails. Raise it on slow machines "
        "and for remote clusters.",
        least=1,
    )
    spark_idle_s: float = setting(
        "HEADRACE_SPARK_IDLE_S",
        300.0,
        "Seconds after which an idle Spark is stopped. A larger value saves the start before the "
        "next snapshot; a smaller one frees Spark's memory sooner.",
        least=0.1,
    )
    spark_losses_max: int = setting(
        "HEADRACE_SPARK_LOSSES_MAX",
        2,
        "Number of times that a snapshot restarts a lost Spark driver before it fails.",
        least=0,
    )
    values: SnapshotValues = setting(
        "HEADRACE_SNAPSHOT_VALUES",
        SnapshotValues.TYPED,
        "Form of values in snapshots. `typed` uses the same forms as change events; `text` keeps "
        "the texts that COPY prints, and is implied by `HEADRACE_COMPAT=bridge`.",
    )
    parallel_max: int = setting(
        "HEADRACE_SNAPSHOTS_PARALLEL_MAX",
        2,
        "Maximum number of snapshots that run at the same time. Each one needs a temporary "
        "replication slot, a transaction that stays open, and Spark tasks.",
        least=1,
    )
    requests_max: int = setting(
        "HEADRACE_SNAPSHOT_REQUESTS_MAX",
        1000,
        "Maximum number of requests that the responder accepts before they are finished. Further "
        "requests wait in the queue.",
        least=1,
    )
    attempts_max: int = setting(
        "HEADRACE_SNAPSHOT_ATTEMPTS_MAX",
        3,
        "Maximum number of attempts at a request whose snapshot is interrupted by a restart of the "
        "responder. After the last attempt the request fails.",
        least=1,
    )
    chunk_rows_max: int = setting(
        "HEADRACE_CHUNK_ROWS_MAX",
        10_000,
        "Maximum number of rows in a snapshot chunk. NATS's maximum payload also limits a chunk. "
        "Smaller chunks need less memory in consumers and cost more messages.",
        least=1,
    )
    range_bytes: int = setting(
        "HEADRACE_SNAPSHOT_RANGE_BYTES",
        32 * MIB,
        "Bytes of table storage that one COPY reads. Smaller ranges repeat less after a failed "
        "task; larger ones cost fewer COPY statements. A chunk never spans two ranges.",
        least=8192,
    )
    tasks_max: int = setting(
        "HEADRACE_SNAPSHOT_TASKS_MAX",
        16,
        "Maximum number of Spark tasks per snapshot. Each running task uses one connection to "
        "PostgreSQL; how many run in parallel is up to `HEADRACE_SPARK_MASTER` or the cluster.",
        least=1,
    )
    rate_bytes_s_max: int | None = setting(
        "HEADRACE_SNAPSHOT_RATE_BYTES_S_MAX",
        None,
        "Maximum bytes of rows per second that all snapshots together read from PostgreSQL. Set it "
        "to protect a busy source; snapshots then take longer. If unset, there is no limit.",
        least=1,
    )
    copy_timeout_s: float = setting(
        "HEADRACE_SNAPSHOT_COPY_TIMEOUT_S",
        3600.0,
        "`statement_timeout` of each COPY, in seconds. 0 sets no limit. Raise it together with "
        "`HEADRACE_SNAPSHOT_RANGE_BYTES`, or when `HEADRACE_SNAPSHOT_RATE_BYTES_S_MAX` is low.",
        least=0,
    )
    slot_wait_s: float = setting(
        "HEADRACE_SNAPSHOT_SLOT_WAIT_S",
        60.0,
        "Seconds to wait for transactions that were open when a snapshot starts. PostgreSQL can't "
        "create the snapshot's temporary slot before they end. The error lists the sessions that "
        "are in the way.",
        least=0.1,
    )
    ack_wait_s: float = setting(
        "HEADRACE_SNAPSHOT_ACK_WAIT_S",
        30.0,
        "Seconds after which a request is redelivered when the responder that had it is gone. A "
        "larger value delays the next attempt.",
        least=1,
    )
    progress_interval_s: float = setting(
        "HEADRACE_SNAPSHOT_PROGRESS_S",
        1.0,
        "Seconds between progress messages of a running snapshot.",
        least=0.05,
    )
