"""The lake's files in a folder or a bucket, by their whole locations. Blocking.

Promises that a local file is on disk when `put` returns, and that `put` never overwrites: every
name contains a random part, and a store that knows conditions refuses a name that is taken.
Translates the store's errors.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import obstore
from obstore import exceptions
from pyiceberg.io import FileIO, InputFile, OutputFile

from headrace.archive.local_folders import make_synced, sync
from headrace.archive.store import FAILURES, open_store
from headrace.lake.errors import LakeError, LakeUnreachableError

TIMEOUT_S = 60.0
# Larger objects are uploaded in parts, each with a separate time limit.
PART_BYTES = 64 << 20
_DENIED = (
    PermissionError,
    exceptions.PermissionDeniedError,
    exceptions.UnauthenticatedError,
)
_NO_BUCKET = "<Code>NoSuchBucket</Code>"
_ANSWER = re.compile(r"<Code>(.*?)</Code>(?:\s*<Message>(.*?)</Message>)?", re.DOTALL)
_LOCATION_REMEDY = "Check HEADRACE_LAKE_URL and the network."
_BUCKET_REMEDY = "Create the bucket, or correct HEADRACE_LAKE_URL."
_CREDENTIALS_REMEDY = (
    "Check the credentials for HEADRACE_LAKE_URL (for S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY "
    "and AWS_REGION): they must permit it to list, read, write and delete."
)


def canonical(location: str) -> str:
    """A location as this lake writes it: Java's engines write `file:/` with one slash."""
    if location.startswith("file:/") and not location.startswith("file://"):
        return f"file://{location.removeprefix('file:')}"
    return location


class LakeFiles:
    """Objects below the root location of a lake."""

    def __init__(self, url: str, timeout_s: float = TIMEOUT_S) -> None:
        self.root = url.rstrip("/")
        try:
            self._store = open_store(url, {}, timeout_s)
        except FAILURES as error:
            raise LakeError(
                f"the lake {url} can't be opened: {_reason(error)}", remedy=_LOCATION_REMEDY
            ) from error
        parts = urlsplit(url)
        self._folder = Path(unquote(parts.path)) if parts.scheme == "file" else None

    def location(self, name: str) -> str:
        """The whole location of a name below the root."""
        return f"{self.root}/{name}"

    def contains(self, location: str) -> bool:
        """Whether a location is below the root."""
        return canonical(location).startswith(f"{self.root}/")

    def put(self, location: str, data: bytes | memoryview) -> None:
        """Write a new file; on disk when this returns."""
        name = self._name(location)
        try:
            if self._folder is None:
                self._put_object(name, data)
            else:
                _write_synced(self._folder / name, data)
        except FAILURES as error:
            raise _failure(location, "written", error) from error

    def _put_object(self, name: str, data: bytes | memoryview) -> None:
        if len(data) > PART_BYTES:
            # Stores offer no condition for uploads in parts; the name's random part is unique.
            obstore.put(self._store, name, bytes(data), use_multipart=True)
        else:
            obstore.put(self._store, name, bytes(data), mode="create", use_multipart=False)

    def get(self, location: str) -> bytes:
        """A file's content."""
        name = self._name(location)
        try:
            if self._folder is not None:
                return (self._folder / name).read_bytes()
            return bytes(obstore.get(self._store, name).bytes())
        except FileNotFoundError as error:
            # A bucket that doesn't exist is no lost file, and has another remedy.
            if _NO_BUCKET in str(error):
                raise _failure(location, "read", error) from error
            raise LakeError(
                f"{location} is missing",
                remedy="Restore it, or copy the table again with `headrace lake backfill`.",
            ) from error
        except FAILURES as error:
            raise _failure(location, "read", error) from error

    def size(self, location: str) -> int:
        """A file's size in bytes."""
        try:
            return int(obstore.head(self._store, self._name(location))["size"])
        except FAILURES as error:
            raise _failure(location, "read", error) from error

    def delete(self, locations: list[str]) -> None:
        """Remove files; it is no error if one doesn't exist."""
        for location in locations:
            try:
                obstore.delete(self._store, self._name(location))
            except FileNotFoundError:
                continue
            except FAILURES as error:
                raise _failure(location, "removed", error) from error

    def walk(self, below: str) -> Iterator[tuple[str, int, float]]:
        """Location, size and time of the last change of each file below a location."""
        try:
            for page in obstore.list(self._store, self._name(below)):
                for item in page:
                    yield (
                        self.location(item["path"]),
                        item["size"],
                        item["last_modified"].timestamp(),
                    )
        except FAILURES as error:
            raise _failure(below, "listed", error) from error

    def folders(self, below: str = "") -> list[str]:
        """The folders directly below a location, or the root."""
        found = self._listed(below)
        return [self.location(name.rstrip("/")) for name in found["common_prefixes"]]

    def at_root(self) -> list[tuple[str, int, float]]:
        """Location, size and time of the last change of each file directly below the root."""
        return [
            (self.location(item["path"]), item["size"], item["last_modified"].timestamp())
            for item in self._listed("")["objects"]
        ]

    def _listed(self, below: str) -> Any:
        prefix = self._name(below) if below else None
        try:
            return obstore.list_with_delimiter(self._store, prefix)
        except FAILURES as error:
            raise _failure(below or self.root, "listed", error) from error

    def _name(self, location: str) -> str:
        if not self.contains(location):
            raise LakeError(
                f"{location} is not in the lake {self.root}",
                remedy="A lake can't be moved: use the URL that it was created with.",
            )
        return canonical(location)[len(self.root) + 1 :]


def _failure(location: str, done: str, error: Exception) -> LakeUnreachableError:
    if _NO_BUCKET in str(error):
        remedy = _BUCKET_REMEDY
    # obstore has a class for some refusals only.
    elif isinstance(error, _DENIED) or "403 Forbidden" in str(error):
        remedy = _CREDENTIALS_REMEDY
    else:
        remedy = _LOCATION_REMEDY
    return LakeUnreachableError(f"{location} can't be {done}: {_reason(error)}", remedy=remedy)


def _reason(error: Exception) -> str:
    """The store's answer, or the first line: the others are for obstore's developers."""
    answer = _ANSWER.search(str(error))
    if answer is not None:
        return ": ".join(part for part in answer.groups() if part).rstrip(".")
    line = str(error).strip().partition("\n")[0].rstrip(": ")
    return line or type(error).__name__


def _write_synced(path: Path, data: bytes | memoryview) -> None:
    make_synced(path.parent)
    # Fails if the name is taken: nothing is ever overwritten.
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    # The name is durable only with its folder.
    sync(path.parent)


class _Read(InputFile):
    """A file as PyIceberg reads it: fetched as a whole."""

    def __init__(self, files: LakeFiles, location: str) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        return self._files.size(self.location)

    def exists(self) -> bool:
        """Internal: never asked; a file is read or not."""
        return True

    def open(self, seekable: bool = True) -> Any:  # noqa: ARG002  # PyIceberg's
        """Internal: the content."""
        return io.BytesIO(self._files.get(self.location))


class _Stream(io.BytesIO):
    """Bytes that are written to the lake when they are complete."""

    def __init__(self, written: _Written) -> None:
        super().__init__()
        self._written = written

    def close(self) -> None:
        # A second close must not write again: the name is taken by then.
        if not self.closed:
            self._written.take(self.getvalue())
        super().close()


class _Written(OutputFile):
    """A file as PyIceberg writes it."""

    def __init__(self, files: LakeFiles, location: str) -> None:
        super().__init__(location)
        self._files = files
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def exists(self) -> bool:
        """Internal: names are new."""
        return False

    def to_input_file(self) -> InputFile:
        """Internal: the same file, to be read."""
        return _Read(self._files, self.location)

    def create(self, overwrite: bool = False) -> Any:  # noqa: ARG002  # PyIceberg's
        """Internal: where to write."""
        return _Stream(self)

    def take(self, data: bytes) -> None:
        self._size = len(data)
        self._files.put(self.location, data)


class LakeIO(FileIO):
    """The lake's files for PyIceberg."""

    def __init__(self, files: LakeFiles) -> None:
        super().__init__({})
        self._files = files

    def new_input(self, location: str) -> InputFile:
        return _Read(self._files, location)

    def new_output(self, location: str) -> OutputFile:
        return _Written(self._files, location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        if not isinstance(location, str):
            location = location.location
        self._files.delete([location])
