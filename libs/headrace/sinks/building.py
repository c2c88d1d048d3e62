"""Builds a sink's router and its class's objects from its configuration."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.sinks.conditions import check_type, compiled
from headrace.sinks.configuration import SinkConfiguration
from headrace.sinks.filters import (
    by_function,
    by_operation,
    by_row,
    by_table,
    of_tables,
    with_columns,
)
from headrace.sinks.formats import encoder
from headrace.sinks.port import Describe, Sink, SinkOptions
from headrace.sinks.remembered import MarkStore, RememberedMarks
from headrace.sinks.routing import Filter, Router
from headrace.sinks.targets import imported, keeps_marks, sink_class
from headrace.sinks.templates import template


def router_of(configuration: SinkConfiguration) -> Router:
    """Tables and operations first, because they leave out most; the program's function last."""
    filters: list[Filter] = []
    if configuration.tables:
        filters.append(by_table(configuration.tables))
    filters.append(by_operation(frozenset(one.upper() for one in configuration.operations)))
    # Before columns are left out: a condition may be about one that the target doesn't get.
    if configuration.where:
        rows = {
            pattern: by_row(frozenset(test.column for test in tests), compiled(tests))
            for pattern, tests in configuration.where.items()
        }
        filters.append(of_tables(rows))
    if configuration.columns:
        columns = {pattern: with_columns(names) for pattern, names in configuration.columns.items()}
        filters.append(of_tables(columns))
    if configuration.function:
        filters.append(by_function(imported(configuration.function)))
    return Router(
        name=configuration.name,
        destination=template(configuration.destination),
        encode=encoder(configuration.format),
        key=configuration.key,
        filters=tuple(filters),
    )


def check_columns(
    configuration: SinkConfiguration, schema: str, table: str, types: Mapping[str, str]
) -> None:
    """Raise `ConditionError` if a condition of the table's `where` does not fit its column."""
    for test in configuration.where_of(schema, table):
        if test.column in types:
            check_type(test, types[test.column])


def sink_of(
    configuration: SinkConfiguration,
    environ: Mapping[str, str],
    stream: str,
    marks: MarkStore,
    describe: Describe | None = None,
) -> Sink:
    """A sink for one session, with its marks in `marks` unless it keeps them itself."""
    made = sink_class(configuration.address(environ))
    sink = made(
        SinkOptions(
            name=configuration.name,
            to=configuration.address(environ),
            stream=stream,
            options=configuration.secrets(environ),
            describe=describe,
        )
    )
    if keeps_marks(made):
        return sink
    # In the state bucket, after the delivery: such a sink promises at least once (ADR 0036).
    return RememberedMarks(sink, marks)
