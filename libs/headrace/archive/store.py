"""The archive's object store, using obstore, blocking and asynchronous.

Promises: `put_new` never overwrites in a store that `prepare` accepted; in a local folder, the
object is on disk when it returns. Translates obstore's errors: only this package's errors leave
this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
from obstore import exceptions
from obstore.store import AzureStore, LocalStore, from_url

from headrace.archive import layout
from headrace.archive.errors import (
    ArchiveUnreachableError,
    FileTakenError,
    StoreFullError,
    StoreUnfitError,
)
from headrace.archive.local_folders import make_synced, sync

LIST_MAX = 1000
# An older draft was abandoned: no put takes this long.
DRAFT_AGE_S = 3600.0
_DRAFT = "."
FAILURES = (exceptions.BaseError, OSError, ValueError)
_ABSENT = (FileNotFoundError, exceptions.NotFoundError)


@dataclass(frozen=True, slots=True)
class ObjectMetadata:
    """An object, as described by its store."""

    # Its path in the store.
    location: str
    # Its size in bytes.
    size: int
    # When the store received it.
    last_modified: datetime


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes at the end of an object, or all of it."""

    metadata: ObjectMetadata
    data: bytes


@dataclass(frozen=True, slots=True)
class Get:
    """Request an object: its last bytes, or all of it."""

    name: str
    tail_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Ask for a part of an object."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Head:
    """Request an object's metadata."""

    name: str


@dataclass(frozen=True, slots=True)
class Names:
    """Request the objects after a name, in order: `limit` of them, or all."""

    after: str
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Request a pause."""

    seconds: float


Request = Get | ByteRange | Head | Names | Wait


class Store:
    """One archive's objects. Names are relative to its URL."""

    def __init__(
        self, url: str, options: Mapping[str, str] | None = None, timeout_s: float = 30.0
    ) -> None:
        self.url = url
        try:
            self._store: Any = open_store(url, dict(options or {}), timeout_s)
        except FAILURES as error:
            raise ArchiveUnreachableError(
                f"the archive {url} can't be opened: {_first_line(error)}"
            ) from error
        # Azure can't return the last bytes of an object without its size, so the size is requested
        # first.
        self.tells_tail = not isinstance(self._store, AzureStore)
        self._folder: Path | None = None
        if isinstance(self._store, LocalStore):
            self._folder = Path(str(self._store.prefix))

    def ask(self, request: Request) -> Any:
        """Execute a request, blocking; returns None if the object doesn't exist."""
        with self._errors(request):
            try:
                return self._answer(request)
            except FAILURES as error:
                if isinstance(error, _ABSENT) or not isinstance(request, Get | ByteRange):
                    raise
                # The store refuses the range. Its size tells whether the object is too short, or it
                # is another error.
                return _too_short(
                    request, self._metadata(obstore.head(self._store, request.name)), error
                )
        # The object doesn't exist.
        return None  # type: ignore[unreachable]  # the context swallowed an error

    def _answer(self, request: Request) -> Any:
        match request:
            case Get(name, None):
                return self._fetched(obstore.get(self._store, name))
            case Get(name, size):
                if self.tells_tail:
                    whole = None
                else:
                    whole = self._metadata(obstore.head(self._store, name)).size
                return self._fetched(
                    obstore.get(self._store, name, options=_tail(size or 0, whole))
                )
            case ByteRange(name, start, stop):
                return self._fetched(
                    obstore.get(self._store, name, options={"range": (start, stop)})
                )
            case Head(name):
                return self._metadata(obstore.head(self._store, name))
            case Names(after, limit):
                found: list[ObjectMetadata] = []
                for chunk in obstore.list(self._store, offset=after, chunk_size=limit or LIST_MAX):
                    found += [self._metadata(item) for item in chunk]
                    # A folder is listed in no order: its first object is known only when all are.
                    if limit is not None and len(found) >= limit and self._folder is None:
                        break
                # A folder returns names in any order.
                return sorted(found, key=lambda item: item.location)[:limit]
        return None

    async def ask_async(self, request: Request) -> Any:
        """Execute a request."""
        with self._errors(request):
            try:
                return await self._answer_async(request)
            except FAILURES as error:
                if isinstance(error, _ABSENT) or not isinstance(request, Get | ByteRange):
                    raise
                item = self._metadata(await obstore.head_async(self._store, request.name))
                return _too_short(request, item, error)
        # The object doesn't exist.
        return None  # type: ignore[unreachable]  # the context swallowed an error

    async def _answer_async(self, request: Request) -> Any:
        match request:
            case Get(name, None):
                return await self._fetched_async(await obstore.get_async(self._store, name))
            case Get(name, size):
                whole = None
                if not self.tells_tail:
                    whole = self._metadata(await obstore.head_async(self._store, name)).size
                ranged = await obstore.get_async(self._store, name, options=_tail(size or 0, whole))
                return await self._fetched_async(ranged)
            case ByteRange(name, start, stop):
                part = await obstore.get_async(self._store, name, options={"range": (start, stop)})
                return await self._fetched_async(part)
            case Head(name):
                return self._metadata(await obstore.head_async(self._store, name))
            case _:
                return await asyncio.to_thread(self.ask, request)

    def put_new(self, name: str, data: bytes) -> None:
        """Create an object; raises `FileTakenError` if it exists."""
        if self._folder is not None:
            self._link_new(self._folder / name, data)
            return
        with self._errors(Head(name)):
            # In one request: the condition applies to the moment at which the object appears.
            obstore.put(self._store, name, data, mode="create", use_multipart=False)

    def prepare(self) -> None:
        """Call before the first `put_new`: raises if it could overwrite, and removes remains of
        killed writers.
        """
        if self._folder is not None:
            self._sweep(self._folder)
            return
        # Some stores accept the condition and ignore it: two writers would both believe that a file
        # is theirs.
        for _ in range(2):
            try:
                self.put_new(layout.ONCE, b"made once\n")
            except FileTakenError:
                return
        raise StoreUnfitError(
            f"{self.url}: {layout.ONCE} was created twice, though creating it requires that it "
            "doesn't exist"
        )

    def now(self) -> datetime:
        """The time by the clock that dates the objects, which may differ from this machine's."""
        self.put(layout.CLOCK, b"")
        item: ObjectMetadata | None = self.ask(Head(layout.CLOCK))
        if item is None:
            raise ArchiveUnreachableError(
                f"{self.url}: {layout.CLOCK} was written and can't be found"
            )
        return item.last_modified

    def put(self, name: str, data: bytes) -> None:
        """Overwrite an object, for small state that is read as a whole."""
        with self._errors(Head(name)):
            obstore.put(self._store, name, data, use_multipart=False)

    def delete(self, name: str) -> None:
        """Remove an object; it is no error if it doesn't exist."""
        with self._errors(Head(name)):
            obstore.delete(self._store, name)
        if self._folder is not None and "/" in name:
            # Only buckets have no empty folders.
            with contextlib.suppress(OSError):
                (self._folder / name).parent.rmdir()

    def _link_new(self, path: Path, data: bytes) -> None:
        """Synced before it gets its name: after a machine failure the file is complete or doesn't
        exist.
        """
        draft = path.with_name(f"{_DRAFT}{path.name}.{secrets.token_hex(6)}")
        try:
            # A name may have folders, and theirs must survive a power failure, too.
            make_synced(path.parent, below=self._folder)
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                # Before the link: a name that survives a power failure must not show an empty file.
                os.fsync(file.fileno())
            # A link fails if the name exists; a rename would replace the file.
            os.link(draft, path)
            # The name itself is part of the folder, and lost without this.
            sync(path.parent)
        except FileExistsError as error:
            raise FileTakenError(f"{path.name} was written by another process") from error
        except OSError as error:
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            kind = StoreFullError if full else ArchiveUnreachableError
            raise kind(f"{path} can't be written: {error.strerror}") from error
        finally:
            draft.unlink(missing_ok=True)

    def _sweep(self, folder: Path) -> None:
        """Drafts of files whose writer was killed before it could rename them."""
        before = (datetime.now(UTC) - timedelta(seconds=DRAFT_AGE_S)).timestamp()
        with contextlib.suppress(OSError):
            for draft in folder.glob(f"{_DRAFT}*{layout.SUFFIX}.*"):
                if draft.stat().st_mtime < before:
                    draft.unlink(missing_ok=True)

    def _fetched(self, result: Any) -> Fetched:
        return Fetched(self._metadata(result.meta), bytes(result.bytes()))

    async def _fetched_async(self, result: Any) -> Fetched:
        return Fetched(self._metadata(result.meta), bytes(await result.bytes_async()))

    def _metadata(self, item: Mapping[str, Any]) -> ObjectMetadata:
        return ObjectMetadata(item["path"], item["size"], item["last_modified"])

    @contextlib.contextmanager
    def _errors(self, request: Request) -> Iterator[None]:
        """A missing object is no error; other errors become this package's."""
        try:
            yield
        except _ABSENT:
            return
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError) as error:
            raise FileTakenError(f"{request} was written by another process") from error
        except FAILURES as error:
            if isinstance(request, Names):
                where = f"{self.url}, listed"
            else:
                where = f"{self.url}/{getattr(request, 'name', '')}"
            raise ArchiveUnreachableError(f"{where}: {_first_line(error)}") from error


def _too_short(request: Get | ByteRange, item: ObjectMetadata, error: Exception) -> Fetched:
    """Some stores refuse a range of an object that is too short for it: what to think of that is
    its reader's.
    """
    if item.size >= (request.stop if isinstance(request, ByteRange) else 1):
        raise error
    return Fetched(item, b"")


def _tail(size: int, whole: int | None) -> Any:
    """Options for an object's last bytes; `whole` is its size, if that must be known."""
    return {"range": {"suffix": size} if whole is None else {"offset": max(0, whole - size)}}


def open_store(url: str, options: dict[str, str], timeout_s: float) -> Any:
    if url.startswith("file:"):
        return from_url(url, mkdir=True)
    endpoint = (
        options.get("endpoint")
        or os.environ.get("AWS_ENDPOINT_URL")
        or os.environ.get("AWS_ENDPOINT", "")
    )
    client: Any = {"timeout": timedelta(seconds=timeout_s)}
    if endpoint.startswith("http://"):
        client["allow_http"] = True
    # The caller retries: only it knows whether a lost answer matters.
    retry: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_s)}
    # The URL decides which store's options these are.
    config: Any = options or None
    return from_url(url, config=config, client_options=client, retry_config=retry)


def _first_line(error: Exception) -> str:
    if str(error).strip():
        return str(error).strip().splitlines()[0]
    return type(error).__name__
