"""A bucket that is full, slow or refuses is one clear error; encryption settings reach the bucket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from headrace.backup.errors import BackupStoreError
from headrace.backup.store import BackupStore
from headrace.testing.process import command

FULL = "<Error><Code>InsufficientStorage</Code><Message>The quota is used up</Message></Error>"
DENIED = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
NONE = "<Error><Code>NoSuchKey</Code><Message>No such key</Message></Error>"
# The command gives up after a second; the bucket would answer after a minute.
SLOW_S = 60.0


@dataclass
class Bucket:
    """A bucket's server that answers in its mode, and remembers what was put."""

    mode: str
    endpoint: str = ""
    puts: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        if self.mode == "slow":
            await asyncio.sleep(SLOW_S)
        if self.mode == "denied":
            return web.Response(status=403, text=DENIED)
        if request.method != "PUT":
            return web.Response(status=404, text=NONE)
        await request.read()
        if self.mode == "full":
            return web.Response(status=507, text=FULL)
        self.puts.append({name.lower(): value for name, value in request.headers.items()})
        return web.Response(headers={"ETag": '"1"'})

    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }


@contextlib.asynccontextmanager
async def bucket(mode: str) -> AsyncIterator[Bucket]:
    made = Bucket(mode)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.endpoint = f"http://{host}:{port}"
    try:
        yield made
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("full", "the backup store is full"),
        ("slow", "the backup store can't be used"),
        ("denied", "the backup store can't be used"),
    ],
)
async def test_a_bucket_that_cannot_store_is_one_error_that_names_the_setting(
    mode: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bucket(mode) as found:
        for name, value in found.environment().items():
            monkeypatch.setenv(name, value)
        store = BackupStore("s3://shop/backups", timeout_s=1.0)
        with pytest.raises(BackupStoreError, match=words) as raised:
            await asyncio.to_thread(store.put_new, "wal", "a.zst", b"log")
        assert "HEADRACE_BACKUP_URL" in str(raised.value)
        assert raised.value.retry
        outcome = await command(
            {
                **found.environment(),
                "HEADRACE_BACKUP_URL": "s3://shop/backups",
                "HEADRACE_BACKUP_PUT_TIMEOUT_S": "1",
            },
            "backup",
            "ls",
        )
        assert outcome.code == 1
        assert len(outcome.err.strip().splitlines()) == 1, outcome.err
        assert "HEADRACE_BACKUP_URL" in outcome.err
        assert found.puts == []


async def test_the_stores_encryption_is_requested_for_every_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with bucket("takes") as found:
        given = {
            **found.environment(),
            "AWS_SERVER_SIDE_ENCRYPTION": "aws:kms",
            "AWS_SSE_KMS_KEY_ID": "arn:aws:kms:eu-central-1:1:key/a",
        }
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        store = BackupStore("s3://shop/backups")
        await asyncio.to_thread(store.put_new, "wal", "a.zst", b"log")
        [put] = found.puts
        assert put["x-amz-server-side-encryption"] == "aws:kms"
        assert put["x-amz-server-side-encryption-aws-kms-key-id"].endswith("key/a")
        assert put["if-none-match"] == "*"
