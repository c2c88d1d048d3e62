"""The names of an archive's objects. Pure.

    00000000000000000001.parquet …   log files, ids from 1 without gaps
    readers/{name}.json              registered readers and their next files
    _writers/once                    created once: a second writer of it must be refused
    _writers/clock                   written to read the store's clock
    _bases/{id}/started              created before the snapshot of a base is taken
    _bases/{id}/base.json            a base snapshot; without this record, its parts don't count
    _bases/{id}/{attempt}-00001.parquet …  its rows, by attempt of a task and number

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
BASES = "_bases"
_RECORD = "base.json"


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


def base_folder(base: str) -> str:
    """The folder of a base snapshot."""
    return f"{BASES}/{base}"


def base_beginning(base: str) -> str:
    """The object that shows that a base snapshot is being taken."""
    return f"{base_folder(base)}/started"


def base_record(base: str) -> str:
    """The object that completes a base snapshot."""
    return f"{base_folder(base)}/{_RECORD}"


def base_part(base: str, attempt: str, number: int) -> str:
    """A part of its rows; `attempt` is one attempt at a task of the copy."""
    return f"{base_folder(base)}/{attempt}-{number:05d}{SUFFIX}"


def base_of(location: str) -> str | None:
    """The base snapshot that an object belongs to; None if it belongs to none."""
    folder, _, rest = location.partition("/")
    base, slash, _ = rest.partition("/")
    if folder != BASES or not slash:
        return None
    return base


def is_base_record(location: str) -> bool:
    """Whether this object completes a base snapshot."""
    base = base_of(location)
    return base is not None and location == base_record(base)
