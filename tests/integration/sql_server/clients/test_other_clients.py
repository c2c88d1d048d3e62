"""Drivers and tools of other languages are answered about the lake as by PostgreSQL.

Each asks the SQL server and a PostgreSQL with the same rows the same questions: metadata, values of
many types, prepared statements, cursors, transactions, errors, cancelling.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import sql_clients
from tests.support.shop_lake import Shop


def test_sqlalchemy_reflects_and_queries_the_lake(shop_on_both: Shop) -> None:
    client = sql_clients.python_client("sqlalchemy_client.py")
    found = sql_clients.compare(shop_on_both, client, 55, **sql_clients.greenlet())
    assert "'by_customer'" in str(found["views of sales"])
    assert "['region', 'year']" in str(found["pk_constraint of sales"])
    assert found["a write"] == "failed: InternalError 25006"


@pytest.mark.parametrize("binding", ["no", "yes"], ids=["client-side", "server-side"])
def test_django_inspects_and_queries_the_lake(shop_on_both: Shop, binding: str) -> None:
    client = sql_clients.python_client("django_client.py")
    found = sql_clients.compare(shop_on_both, client, 55, SERVER_SIDE_BINDING=binding)
    assert "class Orders(models.Model)" in str(found["inspectdb"])
    assert found["a write"] == "failed: InternalError 25006"


def test_node_postgres_queries_the_lake(shop_on_both: Shop, tmp_path: Path) -> None:
    client = sql_clients.node_client("node_postgres.mjs", tmp_path)
    found = sql_clients.compare(shop_on_both, client, 22)
    assert found["a statement timeout"] == "57014"


def test_pgjdbc_describes_and_queries_the_lake(shop_on_both: Shop) -> None:
    found = sql_clients.compare(shop_on_both, sql_clients.java_client("JdbcClient.java"), 60)
    assert "items_pkey" in str(found["primary key of items"])


def test_pgx_queries_the_lake(shop_on_both: Shop) -> None:
    found = sql_clients.compare(shop_on_both, sql_clients.go_client(), 55)
    assert found["a pool"] == 0


def test_dbt_documents_and_tests_the_lake(shop_on_both: Shop, tmp_path: Path) -> None:
    client = sql_clients.python_client("dbt_client.py")
    found = sql_clients.compare(shop_on_both, client, 16, **sql_clients.dbt(tmp_path))
    assert found["source.shop.shop.orders"] == ["warn", "2024-05-18T17:00:00+00:00"]
    assert "permission denied" in str(found["a write"])
