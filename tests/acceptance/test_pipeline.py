"""A program's pipeline: the services as its children, sinks, and transactions in the program."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import pytest

from headrace.pipeline import Files, Kafka, PipelineError, Webhook, pipeline
from headrace.pipeline.sinks import configured
from headrace.sinks.configuration import load_sinks
from headrace.testing.database import Database
from headrace.testing.output import ProcessOutput
from headrace.testing.plugin import OwnPostgres
from tests.support.sinks import events_of

EXAMPLE = Path(__file__).parents[2] / "examples/python/pipeline.py"
WAIT_S = 120.0


def test_a_program_names_sinks_as_the_file_does_and_keeps_secrets_out_of_it(tmp_path: Path) -> None:
    text, variables = configured(
        [
            Kafka("broker:9092", topic="{schema}.{table}", options={"password": "hidden"}),
            Webhook("https://a.example", options={"secret": "env:MINE"}, where=[["id", ">", 1]]),
            Webhook("https://b.example", tables=["app.*"], options={"secret": "whsec_hidden"}),
        ]
    )
    assert "hidden" not in text
    file = tmp_path / "headrace.toml"
    file.write_text(text)
    sinks = load_sinks(file, {})
    assert list(sinks) == ["kafka", "https", "https-2"]
    assert sinks["kafka"].secrets(variables)["password"] == "hidden"
    assert sinks["https-2"].secrets(variables)["secret"] == "whsec_hidden"
    assert sinks["https-2"].takes("app", "orders")


@pytest.mark.slow
async def test_the_documented_program_delivers_and_follows_and_continues(
    own_postgres: OwnPostgres, tmp_path: Path
) -> None:
    server = await own_postgres()
    found = server.environment()
    database = Database(server, "postgres")
    await database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    await database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    login = f"{found.get('POSTGRES_BRIDGE_USER', found.get('PGUSER', 'postgres'))}"
    password = found.get("POSTGRES_BRIDGE_PASSWORD", "")
    source = f"postgresql://{login}:{password}@127.0.0.1:{server.port}/postgres"

    async def run(*expected: str, insert: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(EXAMPLE), source),
            cwd=tmp_path,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed = ProcessOutput(process)
        env = tmp_path / "pipeline/.headrace/env"
        async with asyncio.timeout(WAIT_S):
            while not env.exists() or process.returncode is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await database.execute(insert)
        for words in expected:
            await printed.until(words, WAIT_S)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(WAIT_S):
            await printed.ended()
            await process.wait()
        return printed.text

    first = "BEGIN; INSERT INTO orders VALUES (1, 'a'); INSERT INTO other VALUES (1);"
    said = await run(
        r"'id': 1.*'id': 2",
        insert=f"{first} INSERT INTO orders VALUES (2, 'b'); COMMIT",
    )
    assert "other" not in said
    said = await run(r"'id': 3", insert="INSERT INTO orders VALUES (3, 'c')")
    await database.close()
    changes = tmp_path / "pipeline/changes"
    inserted = [one["data"]["id"] for one in events_of(changes) if one["operation"] == "INSERT"]
    assert inserted[:3] == [1, 1, 2], "the files have every table"
    assert processes_in(tmp_path) == []


def processes_in(folder: Path) -> list[bytes]:
    """The commands of processes that name the folder."""
    found = []
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(command.read_bytes())
    return [one for one in found if str(folder).encode() in one]


@pytest.mark.slow
async def test_a_source_that_can_not_be_used_is_an_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="not of the form"):
        async with pipeline(source="mysql://localhost/shop", folder=tmp_path):
            pass
    sinks = [Files("ftp://nowhere")]
    with pytest.raises(PipelineError, match="ftp"):
        async with pipeline(sinks=sinks, folder=tmp_path):
            pass
