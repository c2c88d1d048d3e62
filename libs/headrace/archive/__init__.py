"""The archive: numbered log files in object storage, and readers over them.

Needs obstore, pyarrow and numpy, and neither a database driver, nor NATS, nor Spark. The format is docs/archive.md's.
"""

from headrace.archive.asynchronous import AsyncWalReader
from headrace.archive.entry import RowEntry, RowKind
from headrace.archive.errors import (
    ArchiveError,
    ArchiveUnreachableError,
    WalFileCollectedError,
    WalFileCorruptError,
    WalGapError,
)
from headrace.archive.metadata import Gap, SegmentInfo
from headrace.archive.reader import ObjectMetadata, WalFile, WalReader
from headrace.archive.steps import ReaderMetrics, WalReaderOptions

__all__ = [
    "ArchiveError",
    "ArchiveUnreachableError",
    "AsyncWalReader",
    "Gap",
    "ObjectMetadata",
    "ReaderMetrics",
    "RowEntry",
    "RowKind",
    "SegmentInfo",
    "WalFile",
    "WalFileCollectedError",
    "WalFileCorruptError",
    "WalGapError",
    "WalReader",
    "WalReaderOptions",
]
