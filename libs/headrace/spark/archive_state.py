"""A table as it is, from its changes: a fold over the archive, as a DataFrame.

    changes = spark.read.format("headrace.archive").option("tables", "public.orders").load(url)
    orders = current_state(changes, "id bigint, n int, note string")

Promises the table as of the last change, if the changes reach back to the table's beginning (or to a TRUNCATE). A
TOASTed value that PostgreSQL did not send is taken from the row's earlier change. Changes without a key can't be
folded. Values are exact, but for documents of json and jsonb, whose spaces and trailing zeros Spark writes its own way.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F  # noqa: N812  # as every text on Spark has it
from pyspark.sql.types import DataType, StructType

_MAP = "map<string,string>"


def current_state(changes: Any, schema: str | StructType | None = None) -> Any:
    """The rows that are left after `changes` of one table.

    With a schema, its columns with their types; without, `key` and `row` as maps of texts, and `unknown`: columns whose
    values the changes at hand never had.
    """
    at = F.struct("commit_lsn", "ordinal")
    last_truncate = changes.where("operation = 'truncate'").agg(F.max(at).alias("truncated"))
    rows = changes.where("operation IN ('insert', 'update', 'delete') AND key IS NOT NULL").crossJoin(
        F.broadcast(last_truncate)
    )
    rows = rows.where(F.col("truncated").isNull() | (at > F.col("truncated")))
    steps = rows.select(F.explode(_steps(at)).alias("step")).select("step.*")
    folded = (
        steps.groupBy("key")
        .agg(F.array_sort(F.collect_list(F.struct("place", "gone", "row", "unchanged")), _earlier).alias("history"))
        .select("key", F.expr(_FOLD).alias("row"))
        .where("row IS NOT NULL")
    )
    if schema is None:
        key = F.from_json("key", _MAP).alias("key")
        unknown = F.expr("filter(map_keys(row), name -> row[name] = chr(0))").alias("unknown")
        return folded.select(key, F.expr("map_filter(row, (name, text) -> NOT text <=> chr(0))").alias("row"), unknown)
    wanted = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    return folded.select(*(_value(field.name, field.dataType) for field in wanted.fields))


def _value(name: str, kind: DataType) -> Any:
    text = F.col("row").getItem(name)
    unknown = F.raise_error(F.lit(f"the changes at hand never had the value of column {name}: begin earlier"))
    return F.when(text == F.lit("\0"), unknown).otherwise(text).cast(kind).alias(name)


def _canonical(column: Any) -> Any:
    """A key as one text, whatever the order of its columns."""
    return F.to_json(F.map_from_entries(F.array_sort(F.map_entries(column))))


def _steps(at: Any) -> Any:
    """A change as steps: where the key changed, the old row goes first. An array of structs."""
    key, before = F.from_json("key", _MAP), F.from_json("before", _MAP)
    names = F.map_keys(key)
    old_key = F.map_filter(before, lambda name, _: F.array_contains(names, name))
    moved = before.isNotNull() & (F.size(old_key) == F.size(key)) & (_canonical(old_key) != _canonical(key))
    unchanged = F.coalesce("unchanged", F.array().cast("array<string>"))
    # REPLICA IDENTITY FULL sends in the old row what it left out of the new one.
    kept = F.map_filter(before, lambda name, _: F.array_contains(unchanged, name))
    after = F.map_concat(F.from_json("after", _MAP), F.coalesce(kept, F.create_map().cast(_MAP)))
    left = F.array_except(unchanged, F.coalesce(F.map_keys(kept), F.array().cast("array<string>")))
    old = _step(at, 0, F.lit(True), _canonical(old_key), F.lit(None).cast(_MAP), F.array().cast("array<string>"))
    gone = F.col("operation") == "delete"
    new = _step(at, 1, gone, _canonical(key), after, left)
    return F.when(moved & ~gone, F.array(old, new)).otherwise(F.array(new))


def _earlier(step: Any, other: Any) -> Any:
    """Maps have no order, so that the steps' places are compared alone."""
    return F.when(step["place"] < other["place"], -1).when(step["place"] > other["place"], 1).otherwise(0)


def _step(at: Any, part: int, gone: Any, key: Any, row: Any, unchanged: Any) -> Any:
    return F.struct(
        F.struct(at.alias("at"), F.lit(part).alias("part")).alias("place"),
        gone.alias("gone"),
        key.alias("key"),
        row.alias("row"),
        unchanged.alias("unchanged"),
    )


# NUL, which no text of PostgreSQL has, stands for a value that nobody sent.
_FOLD = """
aggregate(history, CAST(NULL AS map<string,string>), (row, step) -> CASE
    WHEN step.gone THEN CAST(NULL AS map<string,string>)
    WHEN size(step.unchanged) = 0 THEN step.row
    ELSE map_concat(step.row, map_from_arrays(step.unchanged, transform(step.unchanged, name ->
        CASE WHEN row IS NOT NULL AND map_contains_key(row, name) THEN row[name] ELSE chr(0) END)))
END)
"""
