"""The embedded servers keep their promises: durable over kill -9, the same port again, never two on one folder."""

from __future__ import annotations

import asyncpg
import nats
import pytest

from headrace.embedded.nats import EmbeddedNats
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import AlreadyServedError
from headrace.testing.plugin import OwnNats, OwnPostgres

both_versions = pytest.mark.parametrize("pg_version", [16, 18], indirect=True)


@both_versions
async def test_what_postgresql_committed_survives_kill_9_on_the_same_port(
    own_postgres: OwnPostgres, pg_version: int
) -> None:
    server = await own_postgres()
    port = server.port
    connection = await asyncpg.connect(server.dsn())
    assert await connection.fetchval("SHOW wal_level") == "logical"
    assert (await connection.fetchval("SHOW server_version")).startswith(str(pg_version))
    await connection.execute("CREATE TABLE kept (id int); INSERT INTO kept VALUES (42)")
    await server.kill()
    assert not server.running
    connection.terminate()
    await server.start()
    assert server.port == port
    connection = await asyncpg.connect(server.dsn())
    assert await connection.fetchval("SELECT id FROM kept") == 42
    await connection.close()


async def test_a_second_start_on_a_served_cluster_names_the_pid_and_port_that_serve_it(
    own_postgres: OwnPostgres,
) -> None:
    server = await own_postgres()
    with pytest.raises(AlreadyServedError, match=f"process {server.pid} on port {server.port}"):
        await EmbeddedPostgres(server.folder).start()
    assert server.running


async def test_what_jetstream_acknowledged_survives_kill_9_on_the_same_port(own_nats: OwnNats) -> None:
    server = await own_nats()
    url = server.url
    client = await nats.connect(url)
    await client.jetstream().add_stream(name="KEPT", subjects=["kept.>"])
    await client.jetstream().publish("kept.one", b"42")
    await client.close()
    await server.kill()
    await server.start()
    assert server.url == url
    client = await nats.connect(url)
    assert (await client.jetstream().get_msg("KEPT", 1)).data == b"42"
    await client.close()


async def test_a_second_start_on_a_served_store_names_the_pid_and_port_that_serve_it(own_nats: OwnNats) -> None:
    server = await own_nats()
    with pytest.raises(AlreadyServedError, match=f"process {server.pid} on port {server.port}"):
        await EmbeddedNats(server.folder).start()
    assert server.running
