"""Maps Bemi's and Zemi's variables to the suite's, and errors back to their names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SAME = {
    "DB_HOST": "PG_HOST",
    "DB_PORT": "PG_PORT",
    "DB_NAME": "PG_DB",
    "DB_USER": "POSTGRES_BRIDGE_USER",
    "DB_PASSWORD": "POSTGRES_BRIDGE_PASSWORD",
    "DB_SSL_MODE": "PGSSLMODE",
    "DB_SSL_ROOT_CERT": "PGSSLROOTCERT",
    "SLOT_NAME": "HEADRACE_SLOT",
    "PUBLICATION_NAME": "HEADRACE_PUB",
    "TABLES": "HEADRACE_AUDIT_TABLES",
    "SHUTDOWN_TIMEOUT": "HEADRACE_SHUTDOWN_TIMEOUT_S",
    "LOG_LEVEL": "HEADRACE_LOG_LEVEL",
}
# Zemi's defaults.
_DEFAULTS = {
    "PG_HOST": "127.0.0.1",
    "PG_PORT": "5432",
    "PG_DB": "postgres",
    "POSTGRES_BRIDGE_USER": "postgres",
    "POSTGRES_BRIDGE_PASSWORD": "postgres",
}
_NAMED = ("PG_HOST", "PGHOST", "PGHOSTADDR", "PGSERVICE")
_LEVELS = {"warn": "warning"}


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with each of those variables under the suite's name, which they override."""
    made = dict(environ)
    for theirs, ours in _SAME.items():
        if environ.get(theirs):
            made[ours] = environ[theirs]
    if "HEADRACE_LOG_LEVEL" in made:
        made["HEADRACE_LOG_LEVEL"] = _LEVELS.get(
            made["HEADRACE_LOG_LEVEL"], made["HEADRACE_LOG_LEVEL"]
        )
    # A server without a name is the local one, with the usual credentials.
    if not any(made.get(name) for name in _NAMED):
        made = {**_DEFAULTS, **made, "PG_HOST": _DEFAULTS["PG_HOST"]}
    return made


def in_their_words(text: str, environ: Mapping[str, str]) -> str:
    """An error's message with the variables that the user set, or would set, instead of the
    suite's.
    """
    # An option of `init`, which this command calls.
    text = text.replace(
        "--tables ", "TABLES=" if environ.get("TABLES") else "HEADRACE_AUDIT_TABLES="
    )
    of_theirs = {ours: theirs for theirs, ours in _SAME.items() if theirs.startswith("DB_")}
    uses_ours = any(environ.get(name) for name in (*of_theirs, *_NAMED))
    # A user who sets only the suite's variables knows these.
    if uses_ours and not any(environ.get(name) for name in of_theirs.values()):
        return text
    return re.sub(rf"\b({'|'.join(of_theirs)})\b", lambda found: of_theirs[found[1]], text)


def yes(text: str) -> bool:
    return text.lower() in {"1", "true", "yes"}
