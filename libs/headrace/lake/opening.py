"""Checks the settings of a lake, and opens its catalog.

A wrong setting is reported before any connection is opened, with the values that are possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from headrace.errors import SettingError
from headrace.lake.catalog import Catalog
from headrace.lake.postgres_catalog import PostgresCatalog
from headrace.lake.sqlite_catalog import SqliteCatalog
from headrace.settings import Settings

_LOCATIONS = ("file", "s3", "gs", "az")
_LOCATIONS_REMEDY = "Set it to a folder (file:///…) or a bucket (s3://…, gs://…, az://…)."
_CATALOG_REMEDY = "Use sqlite:///path for a file of this machine, or postgresql://…."


def check_lake(settings: Settings) -> None:
    """Refuse settings with which no lake can be written."""
    check_place(settings)
    if not settings.archive.url:
        raise SettingError(
            "HEADRACE_ARCHIVE_URL is not set",
            remedy="The lake is built from the archive: set it to another folder or bucket.",
        )


def check_place(settings: Settings) -> None:
    """Refuse settings that can't be a lake's."""
    lake = settings.lake
    if not lake.url:
        raise SettingError("HEADRACE_LAKE_URL is not set", remedy=_LOCATIONS_REMEDY)
    scheme = _scheme(lake.url)
    if scheme not in _LOCATIONS:
        raise SettingError(
            f"HEADRACE_LAKE_URL={lake.url} is not the URL of a folder or a bucket",
            remedy=_LOCATIONS_REMEDY,
        )
    if "%" in lake.url:
        raise SettingError(
            f"HEADRACE_LAKE_URL={lake.url} contains %",
            remedy="Some Iceberg readers decode it and others don't: use a path without it.",
        )
    if not lake.catalog and scheme != "file":
        raise SettingError(
            "HEADRACE_LAKE_CATALOG is not set",
            remedy=f"A lake in a bucket needs a catalog. {_CATALOG_REMEDY}",
        )
    if lake.catalog and _scheme(lake.catalog) not in {
        "sqlite",
        "postgresql",
        "postgres",
    }:
        # Not the whole URL, which may contain a password.
        raise SettingError(
            f"HEADRACE_LAKE_CATALOG starts with {lake.catalog.split(':')[0]}:",
            remedy=_CATALOG_REMEDY,
        )
    if lake.catalog is not None and _scheme(lake.catalog) != "sqlite":
        _check_address(lake.catalog)


def _check_address(url: str) -> None:
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # Its message may quote a part of the password.
        raise SettingError(
            "HEADRACE_LAKE_CATALOG is not an address of PostgreSQL",
            remedy="Use postgresql://user:password@host:port/database, with special characters "
            "in the password percent-encoded.",
        ) from None


def open_catalog(settings: Settings) -> Catalog:
    """The lake's catalog; the settings have been checked."""
    url = settings.lake.catalog
    if not url:
        return SqliteCatalog(Path(unquote(urlsplit(settings.lake.url or "").path)) / "catalog.db")
    if _scheme(url) == "sqlite":
        return SqliteCatalog(Path(url.removeprefix("sqlite://")))
    return PostgresCatalog(url)


def local_paths(settings: Settings) -> Iterator[Path]:
    """Paths that have to exist: opening creates them, so a mistyped one would be an empty lake."""
    url = settings.lake.url or ""
    catalog = settings.lake.catalog
    if url.startswith("file://"):
        folder = Path(unquote(urlsplit(url).path))
        yield folder
        if not catalog:
            yield folder / "catalog.db"
    if catalog and catalog.startswith("sqlite://"):
        yield Path(catalog.removeprefix("sqlite://"))


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme if separator else ""
