"""Questions of SQLAlchemy to a server, printed as JSON with their answers or the errors' classes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.engine.reflection import ObjectKind
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.ext.automap import automap_base
from sqlalchemy.orm import Session

ANSWERS: dict[str, object] = {}


def ask(question: str, answer: Callable[[], object]) -> None:
    try:
        ANSWERS[question] = repr(answer())
    except SQLAlchemyError as error:
        code = getattr(getattr(error, "orig", None), "sqlstate", None)
        ANSWERS[question] = f"failed: {type(error).__name__} {code}"


def reflection(engine: sa.Engine) -> None:
    found = sa.inspect(engine)
    for schema in (None, "sales"):
        _of_schema(found, schema)
    ask("materialized views", found.get_materialized_view_names)
    ask("sequences", found.get_sequence_names)
    ask("definition of a view", lambda: found.get_view_definition("open_orders"))
    ask("existence", lambda: [found.has_table(name) for name in ("orders", "open_orders", "none")])
    ask("default schema", lambda: found.default_schema_name)


def _of_schema(found: sa.Inspector, schema: str | None) -> None:
    ask(f"tables of {schema}", lambda: sorted(found.get_table_names(schema=schema)))
    ask(f"views of {schema}", lambda: sorted(found.get_view_names(schema=schema)))
    for name, get in {
        "columns": found.get_multi_columns,
        "pk_constraint": found.get_multi_pk_constraint,
        "foreign_keys": found.get_multi_foreign_keys,
        "indexes": found.get_multi_indexes,
        "unique_constraints": found.get_multi_unique_constraints,
        "check_constraints": found.get_multi_check_constraints,
        "table_comment": found.get_multi_table_comment,
    }.items():
        ask(f"{name} of {schema}", partial(_all, get, schema))


def _all(get: Any, schema: str | None) -> list[tuple[str, str]]:
    items = dict(get(schema=schema, kind=ObjectKind.ANY)).items()
    return sorted((key[1] or "", repr(value)) for key, value in items)


def core(engine: sa.Engine) -> None:
    tables = sa.MetaData()
    tables.reflect(engine, views=True)
    tables.reflect(engine, schema="sales", views=True)
    orders, customers = tables.tables["orders"], tables.tables["customers"]

    def rows(statement: sa.Executable) -> list[tuple[Any, ...]]:
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(statement)]

    for name, table in sorted(tables.tables.items()):
        first = list(table.c)[:2]
        ask(f"rows of {name}", partial(rows, sa.select(table).order_by(*first).limit(30)))
    o, c = orders.c, customers.c
    joined = orders.join(customers, o.customer_id == c.id)
    ask("a join with conditions", lambda: rows(
        sa.select(o.id, c.name, o.total).select_from(joined).where(
            c.credit > Decimal("1000.5"), o.placed >= datetime(2024, 5, 3, tzinfo=UTC),
            o.state.in_(["ok ", "new"]), c.email.is_not(None), c.name.ilike("customer 1%"),
        ).order_by(o.id).limit(20)))  # fmt: skip
    ask("groups", lambda: rows(
        sa.select(c.active, sa.func.count(), sa.func.sum(o.total), sa.func.max(o.placed))
        .select_from(joined).group_by(c.active).having(sa.func.count() > 3).order_by(c.active)))  # fmt: skip
    ask("a common table expression and a window", lambda: rows(_ranked(o)))
    ask("an outer join, a union and a subquery", lambda: rows(_combined(orders, customers)))
    ask("json and arrays", lambda: rows(
        sa.select(c.id, c.profile["level"].astext, c.profile["names"][0].astext, c.tags[1])
        .where(c.profile["level"].as_integer() > 2, (sa.literal("tag 1") == sa.any_(c.tags)) | (c.id == 4)).order_by(c.id)))  # fmt: skip
    ask("parts of times, casts and cases", lambda: rows(
        sa.select(
            sa.extract("month", o.placed), sa.func.date_trunc("day", o.placed), sa.cast(o.total, sa.Integer),
            sa.case((o.weight > 5, "heavy"), else_="light"), sa.func.coalesce(o.note, "?"),
            o.shipped - sa.literal(datetime(2024, 1, 1)), o.id % 7, -o.total,  # noqa: DTZ001  # timestamp without time zone
        ).where(o.id < 30).order_by(o.id)))  # fmt: skip
    ask("pages", lambda: rows(sa.select(o.id).order_by(o.total.desc(), o.id).limit(5).offset(10)))
    ask("distinct on", lambda: rows(
        sa.select(o.customer_id, o.id).ext(distinct_on(o.customer_id)).order_by(o.customer_id, o.id.desc()).limit(9)))  # fmt: skip
    ask("lateral", lambda: rows(_lateral(orders, customers)))
    ask("a write", lambda: rows(sa.delete(orders)))

    def streamed() -> tuple[int, int]:
        with engine.connect().execution_options(yield_per=77) as connection:
            found = [row.id for row in connection.execute(sa.select(o.id).order_by(o.id))]
        return len(found), sum(found)

    ask("a result in parts", streamed)
    for level in ("AUTOCOMMIT", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"):

        def counted(level: str = level) -> object:
            with engine.connect().execution_options(isolation_level=level) as connection:
                return connection.scalar(sa.select(sa.func.count()).select_from(orders))

        ask(f"isolation level {level}", counted)

    def saved() -> object:
        with engine.begin() as connection:
            try:
                with connection.begin_nested():
                    connection.execute(sa.select(o.id / 0))
            except SQLAlchemyError as error:
                return type(error).__name__, connection.scalar(sa.select(sa.func.max(o.id)))
        return None

    ask("a savepoint", saved)


def _ranked(o: Any) -> sa.Select[Any]:
    ranked = sa.select(
        o.id, o.customer_id, sa.func.rank().over(partition_by=o.customer_id, order_by=o.total.desc()).label("r"),
        sa.func.sum(o.total).over(partition_by=o.customer_id).label("total"),
    ).cte("ranked")  # fmt: skip
    return sa.select(ranked).where(ranked.c.r == 1).order_by(ranked.c.customer_id)


def _combined(orders: Any, customers: Any) -> sa.CompoundSelect[Any]:
    o, c = orders.c, customers.c
    late = sa.select(o.customer_id).where(o.shipped.is_(None))
    one = sa.select(c.id, c.name).where(c.id.in_(late))
    left = customers.outerjoin(orders, sa.and_(o.customer_id == c.id, o.total > 5000))
    other = sa.select(c.id, sa.literal("none")).select_from(left).where(o.id.is_(None))
    return one.union(other).order_by("id", "name")


def _lateral(orders: Any, customers: Any) -> sa.Select[Any]:
    o, c = orders.c, customers.c
    last = (
        sa.select(o.id, o.total)
        .where(o.customer_id == c.id)
        .order_by(o.placed.desc())
        .limit(2)
        .lateral("last")
    )
    return (
        sa.select(c.id, last.c.id, last.c.total)
        .select_from(customers.join(last, sa.true()))
        .order_by(c.id, last.c.id)
    )


def mapped(engine: sa.Engine) -> None:
    base: Any = automap_base()
    base.prepare(autoload_with=engine)
    orders, items = base.classes["orders"], base.classes["items"]
    with Session(engine) as session:
        ask("classes", lambda: sorted(base.classes.keys()))
        ask("an object by its key", lambda: _fields(session.get(orders, 17)))
        ask("an object by a key of two columns", lambda: _fields(session.get(items, (5, 2))))
        ask("objects by a condition", lambda: [
            _fields(each) for each in session.scalars(sa.select(orders).where(orders.note.contains("№1")).order_by(orders.id).limit(9))
        ])  # fmt: skip
        ask("a count", lambda: session.query(items).filter(items.quantity > 2).count())
        ask(
            "existence of a row",
            lambda: session.scalar(sa.select(sa.exists().where(items.quantity == 99))),
        )


def _fields(found: Any) -> object:
    return None if found is None else sorted((k, v) for k, v in vars(found).items() if k[0] != "_")


async def asynchronous() -> None:
    engine = create_async_engine("postgresql+asyncpg://")
    tables = sa.MetaData()
    async with engine.connect() as connection:
        await connection.run_sync(tables.reflect, views=True)
        orders = tables.tables["orders"]
        found = await connection.execute(
            sa.select(orders).where(orders.c.id < 20).order_by(orders.c.id)
        )
        ANSWERS["asyncpg: rows"] = repr([tuple(row) for row in found])
        stream = await connection.stream(
            sa.select(orders.c.id).where(orders.c.total > Decimal(10)).order_by(orders.c.id)
        )
        ANSWERS["asyncpg: a stream"] = repr([row.id async for row in stream])
        names = await connection.run_sync(lambda each: sorted(sa.inspect(each).get_table_names()))
        ANSWERS["asyncpg: tables"] = repr(names)
    await engine.dispose()


def main() -> None:
    engine = sa.create_engine("postgresql+psycopg://")
    reflection(engine)
    core(engine)
    mapped(engine)
    engine.dispose()
    asyncio.run(asynchronous())
    json.dump(ANSWERS, sys.stdout)


if __name__ == "__main__":
    main()
