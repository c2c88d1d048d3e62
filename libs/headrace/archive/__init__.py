"""Readers of the archive: every change as numbered log files in object storage.

`WalReader` reads the files and their rows, `AsyncWalReader` does the same in asyncio, and both
return changes in commit order, each exactly once. The errors name what is missing or damaged.
docs/archive.md specifies the format.

    reader = WalReader("s3://bucket/orders")
    for entry in reader.follow(after=stored_position):
        ...

Any program may import it. It needs obstore, pyarrow and numpy (`pip install 'headrace[archive]'`).
Reading never changes the archive, and never loads a database driver, NATS or Spark.
"""

try:
    from headrace.archive.asynchronous import AsyncWalFile, AsyncWalReader
    from headrace.archive.entry import RowEntry, RowKind
    from headrace.archive.errors import (
        ArchiveError,
        ArchiveUnreachableError,
        WalFileCollectedError,
        WalFileCorruptError,
        WalFileMissingError,
        WalGapError,
    )
    from headrace.archive.file_format import RowSelection
    from headrace.archive.metadata import WalFileInfo
    from headrace.archive.read_protocol import ListedFile, ReaderMetrics, WalReaderOptions
    from headrace.archive.reader import ObjectMetadata, WalFile, WalReader
    from headrace.lsn import Gap, Position
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
    "AsyncWalFile",
    "AsyncWalReader",
    "Gap",
    "ListedFile",
    "ObjectMetadata",
    "Position",
    "ReaderMetrics",
    "RowEntry",
    "RowKind",
    "RowSelection",
    "WalFile",
    "WalFileCollectedError",
    "WalFileCorruptError",
    "WalFileInfo",
    "WalFileMissingError",
    "WalGapError",
    "WalReader",
    "WalReaderOptions",
]
