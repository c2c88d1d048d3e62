"""`headrace lake init`: creates the catalog's tables and the folder, and checks that both can be
written. Safe to repeat.
"""

from __future__ import annotations

import re
import secrets
import time
from itertools import islice

from headrace.cli.lake.listing import show
from headrace.cli.lake.selection import chosen, is_missing
from headrace.cli.session import Screen
from headrace.lake.catalog import Catalog
from headrace.lake.errors import LakeError, LakeUnreachableError
from headrace.lake.files import LakeFiles
from headrace.lake.opening import local_paths, open_catalog
from headrace.process.failpoint import failpoint
from headrace.terminal.text import counted

_CATALOG_FILE = "catalog.db"
_NAMED_MAX = 3
# The test object: its name, its content, and the age at which no command can still need it.
_TEST = re.compile(r"headrace-test-[0-9a-f]{16}")
_CONTENT = b"test"
_TEST_LEFT_S = 3600.0


class ForeignPlaceError(LakeError):
    """The place contains what no lake wrote."""

    remedy = "Choose an empty folder or prefix for the lake."


class UnwritableLakeError(LakeError):
    """The place can't be written, read or cleaned."""

    remedy = "Grant the credentials permission to write, read, list and delete objects there."


def init(url: str | None, catalog: str | None, *, as_json: bool) -> None:
    """Create what is missing, and say what there is."""
    settings = chosen(url, catalog)
    assert settings.lake.url is not None, "checked"
    files = LakeFiles(settings.lake.url)
    # First: neither an unwritable place nor a foreign one gets a catalog.
    _try(files)
    strange = _strange(files)
    # Before the catalog is opened, which would create a missing file.
    if strange and not all(path.exists() for path in local_paths(settings)):
        raise _foreign(files, strange)
    found = open_catalog(settings)
    try:
        if strange and not _knows(found, files):
            raise _foreign(files, strange)
        found.prepare()
        tables = len(found.tables())
    finally:
        found.close()
    if as_json:
        show({"lake": files.root, "tables": tables})
        return
    screen = Screen()
    screen.made("lake", files.root, "writable")
    screen.made("catalog", type(found).__name__, f"ready, {counted(tables, 'table')}")


def _try(files: LakeFiles) -> None:
    """Write, read and remove a test object, and those that killed commands have left."""
    name = files.location(f"headrace-test-{secrets.token_hex(8)}")
    try:
        files.put(name, _CONTENT)
        failpoint("lake_init.written")
        read = files.get(name)
        files.delete([name, *_left(files)])
    except (OSError, LakeError) as error:
        raise UnwritableLakeError(f"{files.root} can't be written: {error}") from error
    if read != _CONTENT:
        raise UnwritableLakeError(f"{files.root} does not return what was just written")


def _left(files: LakeFiles) -> list[str]:
    """Old test objects."""
    before = time.time() - _TEST_LEFT_S
    return [
        location
        for location, size, changed in files.at_root()
        if _is_test(files, location) and size == len(_CONTENT) and changed < before
    ]


def _is_test(files: LakeFiles, location: str) -> bool:
    return _TEST.fullmatch(location, len(files.root) + 1) is not None


def _strange(files: LakeFiles) -> list[str]:
    """Some of the place's objects, except a catalog and test objects."""
    names = (
        location[len(files.root) + 1 :]
        for location, _, _ in files.walk(f"{files.root}/")
        # Of a command that runs at the same time, or was killed less than an hour ago.
        if not _is_test(files, location)
    )
    # SQLite has files with longer names next to its own, such as catalog.db-wal.
    return list(islice((name for name in names if not name.startswith(_CATALOG_FILE)), _NAMED_MAX))


def _knows(catalog: Catalog, files: LakeFiles) -> bool:
    """Whether a catalog has a table of this place."""
    try:
        locations = catalog.tables().values()
    except LakeUnreachableError as error:
        if is_missing(error):
            return False
        raise
    return any(location.startswith(f"{files.root}/") for location in locations)


def _foreign(files: LakeFiles, names: list[str]) -> ForeignPlaceError:
    return ForeignPlaceError(
        f"{files.root} is not empty, and the catalog has no table there: {', '.join(names)}"
    )
