"""TLS to PostgreSQL in every sslmode, with client certificates and passwords: which connections are
accepted or refused.

Both kinds of connection, the replication stream over libpq and the ordinary one over asyncpg, must
agree.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from headrace.embedded.postgres import SUPERUSER, EmbeddedPostgres
from headrace.errors import HeadraceError
from headrace.postgres.connection import PostgresRefusedError, connect
from headrace.postgres.replication import ReplicationConnection
from headrace.settings import PostgresSettings
from headrace.testing.certificates import Authority, Pair
from headrace.testing.plugin import OwnPostgres
from headrace.testing.tls_front import TlsFront
from tests.support.scram import server_with_password

MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(autouse=True)
def _no_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The user's own certificates must not affect the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("PGHOST", raising=False)


def server_context(pair: Pair, clients: Authority | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    if clients is not None:
        context.load_verify_locations(clients.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextlib.asynccontextmanager
async def front(
    postgres: EmbeddedPostgres, context: ssl.SSLContext | None, *, plain: bool = False
) -> AsyncIterator[TlsFront]:
    async with TlsFront(lambda: postgres.port, context, plain=plain) as made:
        yield made


async def both(
    port: int, user: str = SUPERUSER, password: str | None = None, host: str = "127.0.0.1"
) -> list[str]:
    """The end of each kind of connection: "ok", or its error's kind."""
    settings = PostgresSettings(host, port, "postgres", user, password, connect_timeout_s=5)
    ends = []
    for attempt in (_replicate, _ask):
        try:
            await attempt(settings)
        except HeadraceError as error:
            ends.append(f"{type(error).__name__}: {error}")
        else:
            ends.append("ok")
    assert not password or all(password not in end for end in ends)
    return ends


async def _replicate(settings: PostgresSettings) -> None:
    connection = await ReplicationConnection.open(settings, "test")
    try:
        assert (await connection.identify()).database == "postgres"
    finally:
        connection.close()


async def _ask(settings: PostgresSettings) -> None:
    connection = await connect(settings, "test")
    try:
        assert await connection.fetchval("SELECT 1") == 1
    finally:
        await connection.close()


def refused(ends: list[str]) -> bool:
    assert ("ok" in ends) != (ends != ["ok", "ok"]), f"the two kinds of connection disagree: {ends}"
    return "ok" not in ends


Mode = Callable[[str], None]


@pytest.fixture
def sslmode(monkeypatch: pytest.MonkeyPatch, authority: Authority) -> Mode:
    """A function that sets an sslmode, with the authority where the mode looks at one."""

    def choose(mode: str) -> None:
        monkeypatch.setenv("PGSSLMODE", mode)
        monkeypatch.delenv("PGSSLROOTCERT", raising=False)
        if mode.startswith("verify"):
            monkeypatch.setenv("PGSSLROOTCERT", str(authority.certificate))

    return choose


async def test_every_sslmode_does_what_libpq_documents(
    postgres_server: EmbeddedPostgres, authority: Authority, sslmode: Mode, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "stranger")
    right = server_context(authority.server())
    wrong_name = server_context(
        authority.server("elsewhere", hosts=("db.example",), addresses=False)
    )
    unknown = server_context(stranger.server())
    lets_in = {
        "with nothing but TLS": (
            right,
            False,
            {"allow", "prefer", "require", "verify-ca", "verify-full"},
        ),
        "with TLS or without": (right, True, set(MODES)),
        "without TLS": (None, True, {"disable", "allow", "prefer"}),
        "of another name": (wrong_name, False, {"allow", "prefer", "require", "verify-ca"}),
        "of an unknown authority": (unknown, False, {"allow", "prefer", "require"}),
    }
    for what, (context, plain, modes) in lets_in.items():
        async with front(postgres_server, context, plain=plain) as server:
            for mode in MODES:
                sslmode(mode)
                server.encrypted = server.plain = 0
                ends = await both(server.port)
                assert refused(ends) == (mode not in modes), (what, mode, ends)
                if mode in ("require", "verify-ca", "verify-full"):
                    assert server.plain == 0, (what, mode)


async def test_a_client_certificate_is_shown_where_it_is_asked_for(
    postgres_server: EmbeddedPostgres,
    authority: Authority,
    sslmode: Mode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = authority.client("reader")
    sslmode("verify-full")
    async with front(postgres_server, server_context(authority.server(), authority)) as server:
        assert refused(await both(server.port))
        monkeypatch.setenv("PGSSLCERT", str(client.certificate))
        monkeypatch.setenv("PGSSLKEY", str(client.key))
        assert await both(server.port) == ["ok", "ok"]
        assert server.proved == {"reader"}


@pytest.fixture
async def with_passwords(own_postgres: OwnPostgres) -> EmbeddedPostgres:
    """A server whose `reader` logs in by SCRAM."""
    return await server_with_password(own_postgres, "reader", "swordfish")


async def test_scram_lets_in_who_knows_the_password_and_never_shows_it(
    with_passwords: EmbeddedPostgres,
    authority: Authority,
    sslmode: Mode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sslmode("verify-full")
    async with front(with_passwords, server_context(authority.server())) as server:
        assert await both(server.port, "reader", "swordfish") == ["ok", "ok"]
        for ends in (
            await both(server.port, "reader", "wrong-guess"),
            await both(server.port, "reader"),
        ):
            assert refused(ends)
            assert all(end.startswith("PostgresRefusedError") for end in ends), ends
        # A proxy that ends TLS before PostgreSQL can't take part in the binding: a required binding
        # is refused, not dropped.
        monkeypatch.setenv("PGCHANNELBINDING", "require")
        ends = await both(server.port, "reader", "swordfish")
        assert refused(ends)
        assert all("swordfish" not in end for end in ends)


async def test_a_required_channel_binding_is_never_dropped_in_silence(
    postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCHANNELBINDING", "require")
    with pytest.raises(PostgresRefusedError, match="PGCHANNELBINDING"):
        await connect(
            PostgresSettings("127.0.0.1", postgres_server.port, "postgres", SUPERUSER), "test"
        )
