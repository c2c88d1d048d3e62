"""TLS to NATS and every method of authentication: which connections are accepted or refused, and
that nothing leaks on the way.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]  # published without type information
import pytest

from headrace.embedded.nats import EmbeddedNats
from headrace.errors import SettingError
from headrace.jetstream.connection import NatsRefusedError, NatsTlsError, connect_once
from headrace.settings import NatsSettings
from headrace.testing.certificates import Authority, Pair
from headrace.testing.plugin import OwnNats


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls(pair: Pair, clients: Authority | None = None) -> dict[str, Any]:
    """nats-server's TLS options."""
    options: dict[str, Any] = {
        "cert_file": str(pair.certificate),
        "key_file": str(pair.key),
        "timeout": 5,
    }
    return {
        "tls": options | ({"ca_file": str(clients.certificate), "verify": True} if clients else {})
    }


async def let_in(settings: NatsSettings) -> bool:
    """Connect, and use JetStream."""
    client = await connect_once(settings, "test")
    try:
        await client.jetstream().account_info()
    finally:
        await client.close()
    return True


def at(
    server: EmbeddedNats, scheme: str = "nats", host: str = "127.0.0.1", **more: Any
) -> NatsSettings:
    return NatsSettings(url=f"{scheme}://{host}:{server.port}", **more)


async def test_tls_proves_the_server_by_its_authority_and_its_name(
    own_nats: OwnNats, authority: Authority, tmp_path: Path
) -> None:
    server = await own_nats(config=tls(authority.server()))
    for scheme in ("nats", "tls"):
        assert await let_in(at(server, scheme, tls_ca=authority.certificate))
        assert await let_in(at(server, scheme, "localhost", tls_ca=authority.certificate))
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "stranger")
    for settings in (at(server), at(server, "tls"), at(server, tls_ca=stranger.certificate)):
        with pytest.raises(NatsTlsError, match="certificate"):
            await let_in(settings)
    named = await own_nats(
        config=tls(authority.server("elsewhere", hosts=("nats.example",), addresses=False))
    )
    with pytest.raises(NatsTlsError, match=r"127\.0\.0\.1"):
        await let_in(at(named, tls_ca=authority.certificate))


async def test_mutual_tls_lets_in_who_shows_a_certificate_and_nobody_else(
    own_nats: OwnNats, authority: Authority, tmp_path: Path
) -> None:
    server = await own_nats(config=tls(authority.server(), authority))
    client = authority.client("publisher")
    shown = at(
        server, tls_ca=authority.certificate, tls_cert=client.certificate, tls_key=client.key
    )
    assert await let_in(shown)
    (tmp_path / "other").mkdir()
    forged = Authority(tmp_path / "other", "stranger").client("publisher")
    for refused in (
        at(server, tls_ca=authority.certificate),
        replace(shown, tls_cert=forged.certificate, tls_key=forged.key),
    ):
        with pytest.raises(Exception, match=r"NATS at nats://127\.0\.0\.1:\d+"):
            await let_in(refused)
    with pytest.raises(SettingError, match="can't be loaded"):
        await let_in(replace(shown, tls_key=tmp_path / "missing.key"))


@contextlib.asynccontextmanager
async def impostor() -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server without TLS that notes all it receives."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {
            "server_id": "X",
            "version": "2.15.1",
            "max_payload": 1_048_576,
            "proto": 1,
            "auth_required": True,
        }
        writer.write(b"INFO " + json.dumps(info).encode() + b"\r\n")
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                heard.append(data)
                if b"PING" in data:
                    writer.write(b"PONG\r\n")
        writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield listener.sockets[0].getsockname()[1], heard
    finally:
        listener.close()


async def test_a_server_that_leaves_tls_out_is_told_no_secret(authority: Authority) -> None:
    async with impostor() as (port, heard):
        for settings in (
            NatsSettings(url=f"tls://127.0.0.1:{port}", user="u", password="swordfish"),
            NatsSettings(
                url=f"nats://127.0.0.1:{port}", tls_ca=authority.certificate, token="swordfish"
            ),
        ):
            with pytest.raises(NatsTlsError, match="no TLS"):
                await connect_once(settings, "test")
        assert b"swordfish" not in b"".join(heard)
        # If TLS is not required, it receives the password: the trap itself works.
        await (
            await connect_once(NatsSettings(url=f"nats://127.0.0.1:{port}", token="plain"), "test")
        ).close()
        assert b"plain" in b"".join(heard)


async def refuses(settings: NatsSettings) -> None:
    with pytest.raises(NatsRefusedError) as refusal:
        await let_in(settings)
    assert "NATS_BRIDGE_USER" in str(refusal.value)
    for secret in (settings.password, settings.token):
        assert secret is None or secret not in str(refusal.value)


async def test_user_and_password_token_and_url_let_in_who_has_them(own_nats: OwnNats) -> None:
    by_password = await own_nats(
        config={"authorization": {"users": [{"user": "pub", "password": "right"}]}}
    )
    assert await let_in(at(by_password, user="pub", password="right"))
    assert await let_in(NatsSettings(url=f"nats://pub:right@127.0.0.1:{by_password.port}"))
    for wrong in (at(by_password), at(by_password, user="pub", password="wrong-guess")):
        await refuses(wrong)
    by_token = await own_nats(config={"authorization": {"token": "right"}})
    assert await let_in(at(by_token, token="right"))
    for wrong in (at(by_token), at(by_token, token="wrong-guess")):
        await refuses(wrong)


def new_key(prefix: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


def seed_file(path: Path, pair: nkeys.KeyPair) -> Path:
    path.touch(mode=0o600)
    path.write_bytes(pair.seed)
    return path


async def test_an_nkey_lets_in_who_can_sign_with_it(own_nats: OwnNats, tmp_path: Path) -> None:
    pair, stranger = new_key(nkeys.PREFIX_BYTE_USER), new_key(nkeys.PREFIX_BYTE_USER)
    right, wrong = (
        seed_file(tmp_path / "right.nk", pair),
        seed_file(tmp_path / "wrong.nk", stranger),
    )
    server = await own_nats(
        config={"authorization": {"users": [{"nkey": pair.public_key.decode()}]}}
    )
    assert await let_in(at(server, nkey_seed=right))
    for refused in (at(server), at(server, nkey_seed=wrong)):
        await refuses(refused)
    with pytest.raises(SettingError, match="NATS_NKEY_SEED"):
        await let_in(at(server, nkey_seed=tmp_path / "missing.nk"))


def token(claims: dict[str, Any], signer: nkeys.KeyPair) -> str:
    """A JWT as NATS has them."""

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    issued = claims | {
        "iss": signer.public_key.decode(),
        "iat": int(time.time()),
        "jti": os.urandom(8).hex(),
    }
    signed = f"{part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{part(issued)}"
    return (
        f"{signed}.{base64.urlsafe_b64encode(signer.sign(signed.encode())).rstrip(b'=').decode()}"
    )


def credentials(path: Path, jwt: str, pair: nkeys.KeyPair) -> Path:
    path.touch(mode=0o600)
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{pair.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    return path


async def test_a_credentials_file_lets_in_whom_the_account_signed_for_until_it_expires(
    own_nats: OwnNats, tmp_path: Path
) -> None:
    operator, account = new_key(nkeys.PREFIX_BYTE_OPERATOR), new_key(nkeys.PREFIX_BYTE_ACCOUNT)
    user, stranger = new_key(nkeys.PREFIX_BYTE_USER), new_key(nkeys.PREFIX_BYTE_ACCOUNT)
    limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
    stored = {
        "mem_storage": -1,
        "disk_storage": -1,
        "streams": -1,
        "consumer": -1,
        "wildcards": True,
    }
    account_jwt = token(
        {
            "sub": account.public_key.decode(),
            "name": "A",
            "nats": {"limits": limits | stored, "type": "account", "version": 2},
        },
        operator,
    )
    operator_jwt = token(
        {
            "sub": operator.public_key.decode(),
            "name": "O",
            "nats": {"type": "operator", "version": 2},
        },
        operator,
    )

    def user_jwt(signer: nkeys.KeyPair, **more: Any) -> str:
        claims = {"subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2}
        return token({"sub": user.public_key.decode(), "name": "u", "nats": claims, **more}, signer)

    system = new_key(nkeys.PREFIX_BYTE_ACCOUNT)
    system_claims = {"limits": limits, "type": "account", "version": 2}
    system_jwt = token(
        {"sub": system.public_key.decode(), "name": "SYS", "nats": system_claims}, operator
    )
    resolver = {account.public_key.decode(): account_jwt, system.public_key.decode(): system_jwt}
    server = await own_nats(
        config={
            "operator": operator_jwt,
            "system_account": system.public_key.decode(),
            "resolver": "MEMORY",
            "resolver_preload": resolver,
        }
    )
    assert await let_in(
        at(server, credentials=credentials(tmp_path / "right.creds", user_jwt(account), user))
    )
    forged = credentials(tmp_path / "forged.creds", user_jwt(stranger), user)
    expired = credentials(
        tmp_path / "expired.creds", user_jwt(account, exp=int(time.time()) - 60), user
    )
    for refused in (at(server), at(server, credentials=forged), at(server, credentials=expired)):
        await refuses(refused)
    with pytest.raises(SettingError, match="NATS_CREDS"):
        await let_in(at(server, credentials=tmp_path / "missing.creds"))
