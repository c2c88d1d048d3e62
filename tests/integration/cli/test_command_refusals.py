"""A command that fails prints one line with the cause and a fix: no traceback, no secret."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.embedded.nats import nats_binary
from headrace.embedded.ports import free_port
from headrace.testing.process import command


@contextlib.asynccontextmanager
async def nats_without_jetstream() -> AsyncIterator[str]:
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        nats_binary(), "-a", "127.0.0.1", "-p", str(port), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while b"Server is ready" not in await process.stderr.readline():
                assert process.returncode is None
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.parametrize(
    "url", ["nats://me:secret@127.0.0.1:port", "http://me:secret@127.0.0.1", "nats://me:secret@"]
)
async def test_a_nats_url_that_is_none_is_told_without_its_password(url: str) -> None:
    found = await command({"NATS_URL": url}, "tail")
    assert found.code == 1
    assert found.err.startswith("headrace: NATS_URL (or NATS_HOST) contains ")
    assert found.err.count("\n") == 1
    assert "secret" not in found.err


async def test_a_nats_without_jetstream_is_told_with_the_remedy() -> None:
    async with nats_without_jetstream() as url:
        found = await command({"NATS_URL": url}, "tail")
    told = "JetStream does not answer on this NATS server. Start nats-server with JetStream (-js), or enable it"
    assert (found.code, found.err) == (1, f"headrace: {told} for this account.\n")


async def test_a_folder_that_up_cannot_write_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write anywhere; a file in the folder's place keeps it out, too.
    (tmp_path / ".headrace").write_text("")
    monkeypatch.chdir(tmp_path)
    found = await command({}, "up", "--once")
    assert found.code == 1
    assert found.err.startswith(f"headrace: headrace up can't write in {tmp_path}/.headrace: ")
    assert found.err.count("\n") == 1


async def test_a_slip_in_a_variable_s_name_is_told_before_anything_else() -> None:
    found = await command({"HEADRACE_DELIVRY": "batch", "NATS_URL": "nats://127.0.0.1:1"}, "tail")
    first = found.err.splitlines()[0]
    assert first == "headrace: Unknown setting HEADRACE_DELIVRY. Did you mean HEADRACE_DELIVERY?"


async def test_to_look_at_an_archive_that_is_not_there_makes_none(tmp_path: Path) -> None:
    folder = tmp_path / "with a slip"
    found = await command({}, "archive", "ls", "--url", folder.as_uri())
    assert found.code == 1
    assert found.err == (
        f"headrace: there is no archive at {folder.as_uri()}. Check the path; the archiver creates "
        "the folder.\n"
    )
    assert not folder.exists()
    folder.mkdir()
    found = await command({}, "archive", "ls", "--url", folder.as_uri())
    assert (found.code, found.out) == (0, f"0 files in {folder.as_uri()}\n")
