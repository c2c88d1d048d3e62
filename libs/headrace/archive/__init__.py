"""The archive: numbered log files in object storage, and readers for them.

Needs obstore, pyarrow and numpy, but no database driver, NATS or Spark. docs/archive.md specifies
the format.
"""

try:
    from headrace.archive.asynchronous import AsyncWalReader
    from headrace.archive.entry import RowEntry, RowKind
    from headrace.archive.errors import (
        ArchiveError,
        ArchiveUnreachableError,
        WalFileCollectedError,
        WalFileCorruptError,
        WalFileMissingError,
        WalGapError,
    )
    from headrace.archive.metadata import SegmentInfo
    from headrace.archive.read_protocol import ListedFile, ReaderMetrics, WalReaderOptions
    from headrace.archive.reader import ObjectMetadata, WalFile, WalReader
    from headrace.lsn import Gap
except ModuleNotFoundError as error:
    if str(error.name).startswith("headrace"):
        raise
    message = (
        f"headrace.archive needs {error.name}, which is not installed: pip install "
        "'headrace[archive]'"
    )
    raise ModuleNotFoundError(message, name=error.name) from None

__all__ = [
    "ArchiveError",
    "ArchiveUnreachableError",
    "AsyncWalReader",
    "Gap",
    "ListedFile",
    "ObjectMetadata",
    "ReaderMetrics",
    "RowEntry",
    "RowKind",
    "SegmentInfo",
    "WalFile",
    "WalFileCollectedError",
    "WalFileCorruptError",
    "WalFileMissingError",
    "WalGapError",
    "WalReader",
    "WalReaderOptions",
]
