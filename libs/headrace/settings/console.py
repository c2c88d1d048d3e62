"""Settings of the console."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.settings.declaration import MIB, setting


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """The suite in a browser: who may see what, and the limits of what is read for it."""

    enabled: bool = setting(
        "HEADRACE_CONSOLE",
        True,  # a setting's default
        "Whether `headrace up` also runs the console.",
    )
    token: str | None = setting(
        "HEADRACE_CONSOLE_TOKEN",
        None,
        "Token of the role admin, with the right to see all values. If it is unset and there is "
        "neither an access file nor a proxy, the console answers only on this machine, to everyone "
        "on it.",
        secret=True,
    )
    access_file: str | None = setting(
        "HEADRACE_CONSOLE_ACCESS_FILE",
        None,
        "TOML file with the tokens, users and groups that may use the console, and with their "
        "roles and rights ([Console](console.md#who-may-do-what)).",
    )
    proxies: tuple[str, ...] = setting(
        "HEADRACE_CONSOLE_PROXIES",
        (),
        "Addresses or networks of reverse proxies that may name a user in `X-Forwarded-User` and "
        "`X-Forwarded-Groups`. Requires `HEADRACE_CONSOLE_PROXY_SECRET`.",
    )
    proxy_secret: str | None = setting(
        "HEADRACE_CONSOLE_PROXY_SECRET",
        None,
        "Secret that these proxies send in `X-Headrace-Proxy-Secret`.",
        secret=True,
    )
    hosts: tuple[str, ...] = setting(
        "HEADRACE_CONSOLE_HOSTS",
        (),
        "Host names by which browsers may reach the console, without ports. Names of this machine "
        "are always accepted on loopback. If the setting is unset, the console accepts any name on "
        "other addresses.",
    )
    redact: tuple[str, ...] = setting(
        "HEADRACE_CONSOLE_REDACT",
        (),
        "Columns (`table.column`) whose values the console shows to nobody, in addition to "
        "`HEADRACE_AUDIT_REDACT`.",
    )
    sql_url: str | None = setting(
        "HEADRACE_CONSOLE_SQL_URL",
        None,
        "Address of the [SQL server](sql.md) for the page SQL, as "
        "`postgresql://user:password@host:5440/lake`, with a user that `headrace sql users add` "
        "created. People with the right `sql` read with the grants of this user. If unset, the "
        "console offers no SQL.",
        secret=True,
    )
    acts_stream: str = setting(
        "HEADRACE_CONSOLE_ACTS_STREAM",
        "HEADRACE_ACTS",
        "JetStream stream for the log of acts. The console creates it.",
    )
    streams_max: int = setting(
        "HEADRACE_CONSOLE_LIVE_MAX",
        32,
        "Maximum number of tabs that follow live at the same time. All of them share one consumer. "
        "Each tab needs memory for messages that it has not read yet, and counts for another "
        "second after it was closed.",
        least=1,
    )
    ring_bytes: int = setting(
        "HEADRACE_CONSOLE_RING_BYTES",
        32 * MIB,
        "Size of the latest messages that are kept for tabs that follow events, in bytes of "
        "payload. Decoded messages need several times as much memory.",
        least=MIB,
    )
    search_messages_max: int = setting(
        "HEADRACE_CONSOLE_SEARCH_MESSAGES_MAX",
        20_000,
        "Maximum number of messages that one search of events reads; the next request continues "
        "the search. With a larger value, each answer takes longer.",
        least=100,
    )
    search_bytes_max: int = setting(
        "HEADRACE_CONSOLE_SEARCH_BYTES_MAX",
        32 * MIB,
        "Maximum bytes that one search of events reads.",
        least=MIB,
    )
