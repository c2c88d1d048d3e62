"""Fixtures: servers of sinks' targets, shared by a session or owned by one test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from headrace.testing.kafka import KafkaServer
from headrace.testing.mariadb import MariadbServer
from headrace.testing.names import Names
from headrace.testing.opensearch import OpenSearchServer
from headrace.testing.rabbitmq import RabbitServer
from headrace.testing.servers import SessionServers
from headrace.testing.valkey import ValkeyServer


@pytest.fixture
def kafka(session_servers: SessionServers) -> KafkaServer:
    """The session's Kafka broker."""
    return session_servers.shared("kafka", KafkaServer)


@pytest.fixture
async def own_kafka(session_servers: SessionServers) -> AsyncIterator[KafkaServer]:
    """A Kafka broker that the test may stop or kill."""
    server = session_servers.new("kafka", KafkaServer)
    await server.start()
    yield server
    session_servers.discard(server)


@pytest.fixture
def valkey(session_servers: SessionServers) -> ValkeyServer:
    """The session's Valkey server."""
    return session_servers.shared("valkey", ValkeyServer)


@pytest.fixture
def own_valkey(session_servers: SessionServers) -> Iterator[ValkeyServer]:
    """A Valkey server that the test may stop or kill."""
    server = session_servers.new("valkey", ValkeyServer)
    server.start_blocking()
    yield server
    session_servers.discard(server)


@pytest.fixture
def rabbitmq(session_servers: SessionServers) -> RabbitServer:
    """The session's RabbitMQ server."""
    return session_servers.shared("rabbitmq", RabbitServer)


@pytest.fixture
async def own_rabbitmq(session_servers: SessionServers) -> AsyncIterator[RabbitServer]:
    """A RabbitMQ server that the test may stop or kill."""
    server = session_servers.new("rabbitmq", RabbitServer)
    await server.start()
    yield server
    session_servers.discard(server)


@pytest.fixture
def opensearch(session_servers: SessionServers) -> OpenSearchServer:
    """The session's OpenSearch server."""
    return session_servers.shared("opensearch", OpenSearchServer)


@pytest.fixture
async def own_opensearch(session_servers: SessionServers) -> AsyncIterator[OpenSearchServer]:
    """An OpenSearch server that the test may stop or kill."""
    server = session_servers.new("opensearch", OpenSearchServer)
    await server.start()
    yield server
    session_servers.discard(server)


@pytest.fixture
def mariadb(session_servers: SessionServers) -> MariadbServer:
    """The session's MariaDB server."""
    return session_servers.shared("mariadb", MariadbServer)


@pytest.fixture
def mariadb_database(mariadb: MariadbServer, names: Names) -> Iterator[str]:
    """The address of an empty database on it."""
    name = names.other("mariadb")
    mariadb.asked(f"CREATE DATABASE `{name}`")
    yield mariadb.url(name)
    mariadb.asked(f"DROP DATABASE `{name}`")
