"""Damage in a bucket: a store refuses ranges of objects that are too short for them, and the error
still names the file.
"""

from __future__ import annotations

import asyncio

import pytest

from headrace.archive import ArchiveError, AsyncWalReader, WalReader, WalReaderOptions
from headrace.archive.layout import file_name
from headrace.testing.s3 import S3Server
from tests.support.archive_maker import Maker


async def test_a_file_that_is_missing_empty_or_cut_off_in_a_bucket_is_named(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    options = WalReaderOptions(store_options=s3.options())
    made = await asyncio.to_thread(Maker, s3.url("log"))
    for _ in range(4):
        await asyncio.to_thread(made.write)
    assert (
        len(await asyncio.to_thread(lambda: list(WalReader(made.url, options).follow(wait=False))))
        == 80
    )
    for damage in (None, b"", b"P", b"PAR1" * 20):
        await asyncio.to_thread(made.store.delete, file_name(3))
        if damage is not None:
            await asyncio.to_thread(made.store.put, file_name(3), damage)
        with pytest.raises(ArchiveError, match=file_name(3)) as found:
            await asyncio.to_thread(lambda: list(WalReader(made.url, options).follow(wait=False)))
        assert not found.value.retry, "no later try finds another file"
        with pytest.raises(ArchiveError, match=file_name(3)):
            assert [
                entry async for entry in AsyncWalReader(made.url, options).follow(wait=False)
            ] == []
