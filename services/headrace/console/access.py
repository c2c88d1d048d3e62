"""The people and programs that may use the console, and their rights. Pure.

A role says which acts are allowed; rights to values, exports and SQL are separate, by patterns of
tables. A console that other machines can reach has tokens or proxies, or it doesn't start.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from headrace.contract.table_patterns import names_table
from headrace.errors import SettingError
from headrace.http.authority import is_loopback
from headrace.settings import ConsoleSettings

_KEYS = frozenset({"name", "role", "token_sha256", "users", "groups", "values", "export", "sql"})
_REMEDY = "docs/console.md shows an access file."
EVERYTHING = ("*",)


class Role(IntEnum):
    """Each includes those before it."""

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Caller:
    """Someone whose request was authenticated. `how` is loopback, token or proxy."""

    user: str
    role: Role
    how: str
    values: tuple[str, ...] = ()
    export: tuple[str, ...] = ()
    sql: tuple[str, ...] = ()

    def sees(self, schema: str, table: str) -> bool:
        """Whether values of this table may be shown to them."""
        return _covers(self.values, schema, table)

    def may_query(self, schema: str, table: str) -> bool:
        """Whether their statements may read this table."""
        return _covers(self.sql, schema, table)

    def may_export(self, schema: str, table: str) -> bool:
        """Whether rows of this table may be in a file for them."""
        return _covers(self.export, schema, table)

    @property
    def sees_everything(self) -> bool:
        return "*" in self.values


def _covers(patterns: Iterable[str], schema: str, table: str) -> bool:
    # A lone asterisk means every table, of every schema.
    return any(pattern == "*" or names_table(pattern, schema, table) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Grant:
    """An entry of the access file."""

    name: str
    role: Role
    token_sha256: str = ""
    users: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    values: tuple[str, ...] = ()
    export: tuple[str, ...] = ()
    sql: tuple[str, ...] = ()

    def caller(self, user: str, how: str) -> Caller:
        return Caller(user, self.role, how, self.values, self.export, self.sql)


@dataclass(frozen=True, slots=True)
class Access:
    """The console's rules. `open_here`: requests of this machine need no token."""

    open_here: bool
    grants: tuple[Grant, ...] = ()
    proxies: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    proxy_secret: str = field(default="", repr=False)

    @property
    def sign_in(self) -> str:
        """How someone signs in."""
        if self.open_here:
            return "none"
        if any(grant.token_sha256 for grant in self.grants):
            return "token"
        return "proxy"

    def by_token(self, token: str) -> Caller | None:
        """The caller with this token."""
        # The file has hashes, so that its readers can't sign in with it.
        digest = hashlib.sha256(token.encode()).hexdigest()
        found = None
        # All of them are compared, so that the time says nothing about the place of a token.
        for grant in self.grants:
            if hmac.compare_digest(digest, grant.token_sha256 or "-"):
                found = grant.caller(grant.name, "token")
        return found

    def trusts(self, address: str, secret: str) -> bool:
        """Whether a proxy at this address may name users."""
        try:
            at = ipaddress.ip_address(address)
        except ValueError:
            return False
        known = any(at in network for network in self.proxies)
        # Both: a program behind the proxy's address doesn't know the secret, and a leaked secret is
        # of no use elsewhere.
        return known and hmac.compare_digest(secret.encode(), self.proxy_secret.encode())

    def by_proxy(self, user: str, groups: Sequence[str]) -> Caller | None:
        """The caller whom a trusted proxy names: the entry with the highest role, and the rights of
        all entries that fit.
        """
        fitting = [
            grant for grant in self.grants if user in grant.users or grant.groups & set(groups)
        ]
        # A proxy that forgot to name a user must not be taken for someone.
        if not user or not fitting:
            return None
        return Caller(
            user,
            # Several groups of one person: each was granted on purpose.
            max(grant.role for grant in fitting),
            "proxy",
            _united(grant.values for grant in fitting),
            _united(grant.export for grant in fitting),
            _united(grant.sql for grant in fitting),
        )


def _united(patterns: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one for some in patterns for one in some))


HERE = Caller("local", Role.ADMIN, "loopback", EVERYTHING, EVERYTHING, EVERYTHING)


def access_of(console: ConsoleSettings, host: str, file_text: str | None) -> Access:
    """The rules from the settings; raises if others could use the console without signing in."""
    grants = _grants(file_text)
    if console.token:
        digest = hashlib.sha256(console.token.encode()).hexdigest()
        grants.append(
            Grant("admin", Role.ADMIN, digest, frozenset(), frozenset(), *[EVERYTHING] * 3)
        )
    # An address proves little: other programs may run behind it.
    if console.proxies and not console.proxy_secret:
        raise SettingError(
            "HEADRACE_CONSOLE_PROXIES is set without HEADRACE_CONSOLE_PROXY_SECRET",
            remedy="Set the secret that the proxies send, or anyone at their addresses is trusted.",
        )
    if (grants or console.proxies) and not _can_sign_in(grants, console):
        raise SettingError(
            "nobody can sign in to the console",
            remedy="Give an entry of HEADRACE_CONSOLE_ACCESS_FILE a token, or users of a proxy.",
        )
    # Refused before the port is open: a warning would be read too late.
    if not grants and not is_loopback(host):
        raise SettingError(
            f"the console would be open to everyone on HEADRACE_HTTP_HOST={host}",
            remedy="Set HEADRACE_CONSOLE_TOKEN or HEADRACE_CONSOLE_ACCESS_FILE.",
        )
    return Access(not grants, tuple(grants), _networks(console.proxies), console.proxy_secret or "")


def _can_sign_in(grants: Sequence[Grant], console: ConsoleSettings) -> bool:
    by_proxy = bool(console.proxies) and any(grant.users or grant.groups for grant in grants)
    return by_proxy or any(grant.token_sha256 for grant in grants)


def _networks(
    texts: Sequence[str],
) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    try:
        return tuple(ipaddress.ip_network(text) for text in texts)
    except ValueError as error:
        raise SettingError(
            f"HEADRACE_CONSOLE_PROXIES: {error}",
            remedy="Write addresses or networks, such as 10.0.0.7,10.1.0.0/16.",
        ) from error


def _grants(text: str | None) -> list[Grant]:
    if text is None:
        return []
    try:
        entries = tomllib.loads(text).get("access", [])
        return [_grant(entry) for entry in entries]
    except (tomllib.TOMLDecodeError, TypeError, AttributeError) as error:
        raise SettingError(f"HEADRACE_CONSOLE_ACCESS_FILE: {error}", remedy=_REMEDY) from error


def _grant(entry: Mapping[str, Any]) -> Grant:
    name = str(entry.get("name", "")).strip()
    wrong = sorted(set(entry) - _KEYS)
    digest = str(entry.get("token_sha256", "")).lower()
    # A typing error in a right would otherwise grant less, or more, than is meant.
    if wrong or not name:
        raise SettingError(
            f"HEADRACE_CONSOLE_ACCESS_FILE: the entry {name!r} has no name, or unknown keys: "
            f"{', '.join(wrong)}",
            remedy=_REMEDY,
        )
    # A token itself, written here by mistake, would be compared with hashes and never fit.
    if digest and (len(digest) != 64 or set(digest) - set("0123456789abcdef")):
        raise SettingError(
            f"HEADRACE_CONSOLE_ACCESS_FILE: token_sha256 of {name!r} is not a SHA-256 in hex",
            remedy="Write the output of `printf %s TOKEN | sha256sum`.",
        )
    return Grant(
        name,
        _role(name, str(entry.get("role", ""))),
        digest,
        frozenset(_texts(entry, "users")),
        frozenset(_texts(entry, "groups")),
        _patterns(entry, "values"),
        _patterns(entry, "export"),
        _patterns(entry, "sql"),
    )


def _role(name: str, word: str) -> Role:
    for role in Role:
        if role.word == word:
            return role
    raise SettingError(
        f"HEADRACE_CONSOLE_ACCESS_FILE: the role {word!r} of {name!r} is unknown",
        remedy="Use viewer, operator or admin.",
    )


def _texts(entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    given = entry.get(key, [])
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        raise SettingError(
            f"HEADRACE_CONSOLE_ACCESS_FILE: {key} is not a list of texts", remedy=_REMEDY
        )
    return tuple(given)


def _patterns(entry: Mapping[str, Any], key: str) -> tuple[str, ...]:
    patterns = _texts(entry, key)
    for pattern in patterns:
        # Raises now, and not at the first request.
        names_table(pattern, "public", "users")
    return patterns
