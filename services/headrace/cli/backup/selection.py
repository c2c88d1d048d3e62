"""The backup store that a command works on, by its options and the environment."""

from __future__ import annotations

import os

from headrace.backup.store import BackupStore
from headrace.errors import SettingError
from headrace.settings import Settings, load


def chosen(url: str | None) -> Settings:
    """The settings, with the location of a store."""
    settings = load(os.environ, backup__url=url)
    if not settings.backup.url:
        raise SettingError(
            "no backup store is named",
            remedy="Name one with --url, or set HEADRACE_BACKUP_URL: file:///…, s3://…",
        )
    return settings


def located(settings: Settings) -> BackupStore:
    """The store of these settings; nothing is read yet."""
    assert settings.backup.url, "checked"
    return BackupStore(settings.backup.url, settings.backup.put_timeout_s)


def opened(settings: Settings) -> BackupStore:
    """The store; raises if there is none, and creates nothing."""
    store = located(settings)
    store.identify()
    return store
