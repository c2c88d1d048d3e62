"""Settings: one declaration each, read from flags and the environment, checked before any I/O.

Owns every setting's name, default, unit and explanation, in one module per topic. The command line,
docs/settings.md and error messages are generated from these declarations. A secret `X` may also be
read from the file that `X_FILE` names. Hand-written on dataclasses because pydantic-settings would
take a sixth of a service's memory budget (docs/adr/0007).

Any package may import it. It never connects to anything, and never shows a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import get_type_hints

from headrace.errors import SettingError
from headrace.settings.archive import ArchiveSettings
from headrace.settings.backup import BackupSettings
from headrace.settings.choices import (
    Compat,
    DeliveryMode,
    Durability,
    IngestMode,
    LakeEngine,
    MsgIdHeader,
    OtlpProtocol,
    Poison,
    Retention,
    SnapshotSpark,
    SnapshotValues,
)
from headrace.settings.connections import NatsSettings, PostgresSettings
from headrace.settings.console import ConsoleSettings
from headrace.settings.declaration import load_group, setting
from headrace.settings.lake import LakeSettings
from headrace.settings.operation import OtelSettings, ProcessSettings, WatchSettings
from headrace.settings.publishing import (
    BusSettings,
    DeliverySettings,
    FormatSettings,
    PublishingSettings,
    StateSettings,
)
from headrace.settings.sinks import SinkSettings
from headrace.settings.snapshot import SnapshotSettings
from headrace.settings.source import SourceSettings, StreamSettings
from headrace.settings.sql import SqlSettings

__all__ = [
    "ArchiveSettings",
    "BackupSettings",
    "BusSettings",
    "Compat",
    "ConsoleSettings",
    "DeliveryMode",
    "DeliverySettings",
    "Durability",
    "FormatSettings",
    "IngestMode",
    "LakeEngine",
    "LakeSettings",
    "MsgIdHeader",
    "NatsSettings",
    "OtelSettings",
    "OtlpProtocol",
    "Poison",
    "PostgresSettings",
    "ProcessSettings",
    "PublishingSettings",
    "Retention",
    "Settings",
    "SinkSettings",
    "SnapshotSettings",
    "SnapshotSpark",
    "SnapshotValues",
    "SourceSettings",
    "SqlSettings",
    "StateSettings",
    "StreamSettings",
    "WatchSettings",
    "load",
    "load_group",
    "setting",
]


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a process."""

    postgres: PostgresSettings = field(default_factory=PostgresSettings)
    nats: NatsSettings = field(default_factory=NatsSettings)
    source: SourceSettings = field(default_factory=SourceSettings)
    streams: StreamSettings = field(default_factory=StreamSettings)
    format: FormatSettings = field(default_factory=FormatSettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    bus: BusSettings = field(default_factory=BusSettings)
    publishing: PublishingSettings = field(default_factory=PublishingSettings)
    state: StateSettings = field(default_factory=StateSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    archive: ArchiveSettings = field(default_factory=ArchiveSettings)
    lake: LakeSettings = field(default_factory=LakeSettings)
    backup: BackupSettings = field(default_factory=BackupSettings)
    sql: SqlSettings = field(default_factory=SqlSettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    sinks: SinkSettings = field(default_factory=SinkSettings)
    watch: WatchSettings = field(default_factory=WatchSettings)
    otel: OtelSettings = field(default_factory=OtelSettings)
    process: ProcessSettings = field(default_factory=ProcessSettings)


def load(environ: Mapping[str, str], **flags: object) -> Settings:
    """Settings from the environment; a flag `group__name` that isn't None takes precedence."""
    groups = {}
    kinds = get_type_hints(Settings)
    for group in fields(Settings):
        given = {
            name.removeprefix(f"{group.name}__"): value
            for name, value in flags.items()
            if name.startswith(f"{group.name}__") and value is not None
        }
        groups[group.name] = load_group(kinds[group.name], environ, given)
    settings = Settings(**groups)
    _check_names(settings)
    _check_delivery(settings.delivery)
    if settings.delivery.compat is Compat.BRIDGE:
        # The bridge's snapshots contain COPY's texts.
        settings = replace(
            settings, snapshot=replace(settings.snapshot, values=SnapshotValues.TEXT)
        )
    return settings


def _check_names(settings: Settings) -> None:
    slot = settings.source.slot
    # PostgreSQL accepts only these characters in a slot's name, and at most 63 bytes.
    if (
        not slot
        or len(slot) > 63
        or not all(c in "abcdefghijklmnopqrstuvwxyz0123456789_" for c in slot)
    ):
        raise SettingError(
            f"--slot {slot!r} is not a valid slot name",
            remedy="Use 1 to 63 lower-case letters, digits and underscores (HEADRACE_SLOT).",
        )
    for env, name in (
        ("HEADRACE_STREAM", settings.streams.cdc),
        ("HEADRACE_INIT_STREAM", settings.streams.init),
        ("HEADRACE_REQUEST_STREAM", settings.streams.requests),
        ("HEADRACE_SCHEMAS_BUCKET", settings.streams.schemas),
        ("HEADRACE_STATE_BUCKET", settings.streams.state),
        ("HEADRACE_LARGE_BUCKET", settings.streams.large),
        ("HEADRACE_PARKED_BUCKET", settings.streams.parked),
    ):
        # A stream's name is a token in the subjects of JetStream's API, so it can't have dots,
        # blanks or wildcards.
        if not name or not all(c.isascii() and (c.isalnum() or c in "_-") for c in name):
            raise SettingError(
                f"{env}={name!r} is not a valid NATS name",
                remedy="Use letters, digits, hyphens and underscores.",
            )


def _check_delivery(delivery: DeliverySettings) -> None:
    if delivery.compat is Compat.BRIDGE and delivery.mode is not DeliveryMode.EVENT:
        raise SettingError(
            f"--compat bridge can't be combined with --delivery {delivery.mode}",
            remedy="The bridge publishes one message per event: set HEADRACE_DELIVERY=event.",
        )
    if delivery.compat is Compat.BRIDGE and delivery.msg_id_header is not MsgIdHeader.NATS:
        raise SettingError(
            "--compat bridge can't be combined with "
            f"HEADRACE_MSG_ID_HEADER={delivery.msg_id_header}",
            remedy="The bridge's messages have their IDs in Nats-Msg-Id: unset the variable.",
        )
