"""Errors of a replication connection, and the meaning of PostgreSQL's refusals."""

from __future__ import annotations

from headrace.postgres.connection import PostgresError, explained
from headrace.settings import PostgresSettings

_MISSING = "42704"
_SLOT_BUSY = "55006"


class SlotBusyError(PostgresError):
    """Another process reads the slot."""

    retry = True


class SnapshotTooLargeError(PostgresError):
    """More transactions were open when the slot was created than fit into a PostgreSQL snapshot."""

    retry = True
    remedy = (
        "Try again when fewer transactions are open, or raise max_connections, which also "
        "raises the limit."
    )


class StandbyError(PostgresError):
    """The server is a standby: its changes could outlive a promotion on an unknown timeline."""

    retry = True
    remedy = "It is read once it is promoted; otherwise set PG_HOST to the primary."


class SlotMissingError(PostgresError):
    """The replication slot doesn't exist."""

    remedy = "Run `headrace init`, or start wal-reader with HEADRACE_CREATE_SLOT=true."


class SlotLostError(PostgresError):
    """PostgreSQL invalidated the slot."""

    remedy = (
        "Changes since its confirmed LSN may be lost. Drop it (`headrace teardown`) and create "
        "a new one, or let wal-reader do both (HEADRACE_RECREATE_SLOT=true); then bootstrap "
        "consumers again."
    )


class ReplicationRefusedError(PostgresError):
    """PostgreSQL refuses replication."""


# The meaning of a refused replication command: SQLSTATE (None: any), words in the message, error,
# remedy (None: the error's own).
_REFUSALS: tuple[tuple[str | None, str, type[PostgresError], str | None], ...] = (
    (_SLOT_BUSY, "", SlotBusyError, None),
    (
        _MISSING,
        "publication",
        ReplicationRefusedError,
        (
            "Run `headrace init`, or CREATE PUBLICATION, or name another with --pub. If it exists, "
            "it was created after changes that the slot still has, which PostgreSQL before 18 "
            "can't deliver: drop the slot (pg_drop_replication_slot), start again, and bootstrap "
            "consumers."
        ),
    ),
    (_MISSING, "", SlotMissingError, None),
    (
        None,
        "wal_level",
        ReplicationRefusedError,
        "Set wal_level = logical in postgresql.conf and restart PostgreSQL.",
    ),
    ("55000", "slot", SlotLostError, None),
    ("58P01", "", SlotLostError, None),
    ("53400", "", ReplicationRefusedError, "Free a slot, or raise max_replication_slots."),
    (None, "initial slot snapshot too large", SnapshotTooLargeError, None),
    ("42501", "", ReplicationRefusedError, "ALTER ROLE … REPLICATION for POSTGRES_BRIDGE_USER."),
)


def refusal(state: str | None, text: str, settings: PostgresSettings) -> PostgresError:
    """The suite's error for a replication command that PostgreSQL refused."""
    # The first match counts, so more specific entries come first.
    for wanted, words, error, remedy in _REFUSALS:
        if wanted in (None, state) and words in text:
            return error(text, remedy=remedy)
    return explained(state, text, settings)


def state_of_refusal(text: str) -> str | None:
    """libpq gives no SQLSTATE for a refused connection; only the message tells the reason."""
    for words, state in (
        ("password authentication failed", "28P01"),
        ("no password supplied", "28P01"),
        ("no pg_hba.conf entry", "28000"),
        ("permission denied to start WAL sender", "42501"),
        ("must be superuser or replication role", "42501"),
        ("is not permitted to log in", "28000"),
        ("too many", "53300"),
    ):
        if words in text:
            return state
    if "does not exist" in text:
        if "database" in text:
            return "3D000"
        return "28000"
    # Also for a server whose lc_messages is another language: the error then counts as temporary,
    # and has no remedy for its cause.
    return None
