"""The lake that a command works on, by its options and the environment."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata

from headrace.errors import HeadraceError
from headrace.lake.catalog import Catalog, Cut, TableName
from headrace.lake.errors import LakeError, LakeUnreachableError
from headrace.lake.files import LakeFiles, LakeIO
from headrace.lake.opening import check_place, local_paths, open_catalog
from headrace.lake.tables import SOURCE_PROPERTY
from headrace.lake.writer import LakeWriter, Source
from headrace.settings import Settings, load

# The words of SQLite and PostgreSQL for a catalog that no lake has been created in.
_NO_TABLES = ("no such table", "does not exist")


class NoLakeError(LakeError):
    """There is no lake at this place."""

    remedy = (
        "Check --url and --catalog (HEADRACE_LAKE_URL, HEADRACE_LAKE_CATALOG); `headrace lake "
        "init` creates a lake, and so does the lake-writer."
    )


@dataclass(frozen=True, slots=True)
class Lake:
    """An open lake."""

    settings: Settings
    files: LakeFiles
    catalog: Catalog

    @property
    def slot(self) -> str:
        """The suite whose tables and cuts these are."""
        return self.settings.source.slot

    def last_cut(self) -> Cut:
        """The last cut; raises if there is none."""
        cut = self.catalog.last_cut(self.slot)
        if cut is None:
            raise NoLakeError(
                f"the lake has no cut of {self.slot} yet",
                remedy="Start the lake-writer, or name the suite by HEADRACE_SLOT.",
            )
        return cut

    def tables(self) -> Mapping[TableName, tuple[str, TableMetadata]]:
        """The current metadata of every table, and where it is."""
        io = LakeIO(self.files)
        return {
            name: (location, FromInputFile.table_metadata(io.new_input(location)))
            for name, location in sorted(self.catalog.tables().items(), key=str)
        }

    def own_tables(self) -> Mapping[TableName, tuple[str, TableMetadata]]:
        """The tables of this suite."""
        return {name: found for name, found in self.tables().items() if self.owns(found[1])}

    def owns(self, metadata: TableMetadata) -> bool:
        """Whether a table is this suite's."""
        return metadata.properties.get(SOURCE_PROPERTY) == self.slot

    def writer(self) -> LakeWriter:
        """A writer as of the last cut, which continues as the lake-writer would."""
        cut = self.last_cut()
        settings = self.settings.lake
        writer = LakeWriter(
            self.files,
            self.catalog,
            Source(self.slot, cut.system_id, self._timeline(), cut.archive),
            settings.cache_bytes,
            settings.keep_cuts,
            settings.keep_s,
        )
        writer.open()
        return writer

    def _timeline(self) -> int:
        # A cut doesn't name the timeline; the snapshots that it consists of do.
        for _, metadata in self.own_tables().values():
            snapshot = metadata.current_snapshot()
            if snapshot is not None and snapshot.summary is not None:
                return int(snapshot.summary.additional_properties.get("headrace.timeline", 0))
        return 0


def chosen(url: str | None, catalog: str | None) -> Settings:
    """The settings, with a place that can be a lake's."""
    settings = load(os.environ, lake__url=url, lake__catalog=catalog)
    check_place(settings)
    return settings


@contextlib.contextmanager
def opened(url: str | None, catalog: str | None) -> Iterator[Lake]:
    """The lake; raises if there is none, and creates nothing."""
    settings = chosen(url, catalog)
    assert settings.lake.url is not None, "checked"
    # Before the catalog is opened: SQLite creates a file that doesn't exist.
    for path in local_paths(settings):
        if not path.exists():
            raise NoLakeError(f"there is no lake at {settings.lake.url}: {path} does not exist")
    found = open_catalog(settings)
    try:
        lake = Lake(settings, LakeFiles(settings.lake.url), found)
        try:
            # Whether the catalog has a lake, before a command prints anything.
            found.tables()
            found.last_cut(lake.slot)
        except LakeUnreachableError as error:
            if is_missing(error):
                raise NoLakeError("the catalog contains no lake") from error
            raise
        yield lake
    finally:
        found.close()


def is_missing(error: LakeUnreachableError) -> bool:
    """Whether a catalog answers, and has no tables of a lake."""
    return any(text in str(error) for text in _NO_TABLES)


class InterruptedByOthersError(HeadraceError):
    """Other writers' cuts came first, time and again."""

    remedy = "Try again; or stop the lake-writer meanwhile."
