"""The names of an archive's objects. Pure.

    00000000000000000001.parquet …   log files, ids from 1 without gaps
    readers/{name}.json              registered readers and their next files
    _writers/once                    created once: a second writer of it must be refused
    _writers/clock                   written to read the store's clock

A listing shows the first and last file, so nothing else has to be kept consistent.
"""

from __future__ import annotations

from headrace.errors import DecodeError

FIRST_ID = 1
_DIGITS = 20
SUFFIX = ".parquet"
READERS = "readers"
# They sort behind the files, so that a listing from a file's name on begins with files; Spark takes
# no notice of them.
ONCE = "_writers/once"
CLOCK = "_writers/clock"


def file_name(file_id: int) -> str:
    return f"{file_id:0{_DIGITS}d}{SUFFIX}"


def file_id(name: str) -> int | None:
    """The id in an object's name; None if it isn't a log file."""
    stem = name.removesuffix(SUFFIX)
    if len(stem) != _DIGITS or stem == name or not (stem.isascii() and stem.isdigit()):
        return None
    return int(stem)


def described(file_id: int) -> str:
    """A log file's name in errors."""
    return f"file {file_id} ({file_name(file_id)})"


def reader_name(reader: str) -> str:
    """The object of a registered reader's position."""
    if not reader or not all(c.isascii() and (c.isalnum() or c in "_-") for c in reader):
        raise DecodeError(
            f"{reader!r} is not a valid reader name",
            remedy="Use letters, digits, hyphens and underscores.",
        )
    return f"{READERS}/{reader}.json"
