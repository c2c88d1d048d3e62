"""A table's current rows from its changes: a fold over the archive, as a DataFrame.

Promises the table as of the last change, if the changes reach back to the table's creation or to a
TRUNCATE. A large value that PostgreSQL did not send is taken from the row's earlier change, even if
its key was different then: only such rows are put together in one task.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import functions as F  # noqa: N812  # as every text on Spark has it
from pyspark.sql.types import BinaryType, DataType, StructType

_MAP = "map<string,string>"


def current_state(changes: Any, schema: str | StructType | None = None) -> Any:
    """Return the current rows of a table, as a DataFrame, from a DataFrame of its changes.

        archive = spark.read.format("headrace.archive").option("tables", "public.orders")
        orders = current_state(archive.load(url), "id bigint, n int, note string")

    With a schema, the result has its columns with their types. Without, it has `key` and `row` as
    maps of texts, and `unknown`, which names columns whose values the changes never contained.

    The result is the table as of the last change, if the changes reach back to the table's creation
    or to a TRUNCATE. Changes without a key are ignored. Values are exact, including bytea as
    `binary`. A JSON document is PostgreSQL's text if parsing it would lose information (`1.50`);
    otherwise, its spaces may differ.
    """
    # The caller may have selected columns without it.
    if "exact" not in changes.columns:
        changes = changes.withColumn("exact", F.lit(None).cast("string"))
    # A struct compares field by field, as positions do.
    at = F.struct("commit_lsn", "ordinal")
    last_truncate = changes.where("operation = 'truncate'").agg(F.max(at).alias("truncated"))
    # A join with one row: collecting its value would run a job while the query is only planned.
    rows = changes.where(
        "operation IN ('insert', 'update', 'delete') AND key IS NOT NULL"
    ).crossJoin(F.broadcast(last_truncate))
    rows = rows.where(F.col("truncated").isNull() | (at > F.col("truncated")))
    steps = rows.select(F.explode(_steps(at)).alias("step")).select("step.*")
    folded = (
        steps.groupBy("key")
        .agg(
            # Spark collects a group's rows in any order.
            F.array_sort(
                F.collect_list(F.struct("place", "gone", "row", "unchanged", "move")), _earlier
            ).alias("history")
        )
        .select("key", F.expr(_FOLD).alias("state"))
    )
    folded = _put_together(folded)
    if schema is None:
        key = F.from_json("key", _MAP).alias("key")
        unknown = F.expr("filter(map_keys(row), name -> row[name] = chr(0))").alias("unknown")
        return folded.select(
            key,
            F.expr("map_filter(row, (name, text) -> NOT text <=> chr(0))").alias("row"),
            unknown,
        )
    if isinstance(schema, str):
        wanted = StructType.fromDDL(schema)
    else:
        wanted = schema
    return folded.select(*(_value(field.name, field.dataType) for field in wanted.fields))


def _value(name: str, kind: DataType) -> Any:
    text = F.col("row").getItem(name)
    unknown = F.raise_error(
        F.lit(f"the given changes never contain the value of column {name}: start earlier")
    )
    known = F.when(text == F.lit("\0"), unknown).otherwise(text)
    # The archive stores bytea in base64.
    return (F.unbase64(known) if isinstance(kind, BinaryType) else known.cast(kind)).alias(name)


def _canonical(column: Any) -> Any:
    """A key as one text, independent of the order of its columns."""
    return F.to_json(F.map_from_entries(F.array_sort(F.map_entries(column))))


def _steps(at: Any) -> Any:
    """A change as steps, an array of structs: if the key changed, the old row is removed first."""
    texts = F.from_json("exact", f"struct<after: {_MAP}, before: {_MAP}>")
    key = F.from_json("key", _MAP)
    before = _exactly(F.from_json("before", _MAP), texts["before"])
    names = F.map_keys(key)
    old_key = F.map_filter(
        F.from_json("before", _MAP), lambda name, _: F.array_contains(names, name)
    )
    moved = (
        before.isNotNull()
        & (F.size(old_key) == F.size(key))
        & (_canonical(old_key) != _canonical(key))
    )
    unchanged = F.coalesce("unchanged", F.array().cast("array<string>"))
    # REPLICA IDENTITY FULL sends values in the old row that it omits from the new one.
    kept = F.map_filter(before, lambda name, _: F.array_contains(unchanged, name))
    new = _exactly(F.from_json("after", _MAP), texts["after"])
    after = F.map_concat(new, F.coalesce(kept, F.create_map().cast(_MAP)))
    left = F.array_except(unchanged, F.coalesce(F.map_keys(kept), F.array().cast("array<string>")))
    # With leading zeros, so that texts sort as positions do.
    move = F.when(
        moved & (F.size(left) > 0), F.format_string("%020d:%020d", "commit_lsn", "ordinal")
    )
    old = _step(at, 0, F.lit(True), _canonical(old_key), F.lit(None).cast(_MAP), left, move)
    gone = F.col("operation") == "delete"
    last = _step(at, 1, gone, _canonical(key), after, left, move)
    return F.when(moved & ~gone, F.array(old, last)).otherwise(F.array(last))


def _exactly(row: Any, texts: Any) -> Any:
    """The row with PostgreSQL's text of values whose JSON loses information."""
    # map_concat raises at a key that both maps have, so replaced values are removed first.
    known = F.coalesce(texts, F.create_map().cast(_MAP))
    return F.map_concat(F.map_filter(row, lambda name, _: ~F.map_contains_key(known, name)), known)


def _earlier(step: Any, other: Any) -> Any:
    """Maps have no order, so only the steps' positions are compared."""
    return (
        F.when(step["place"] < other["place"], -1)
        .when(step["place"] > other["place"], 1)
        .otherwise(0)
    )


def _step(at: Any, part: int, gone: Any, key: Any, row: Any, unchanged: Any, move: Any) -> Any:
    return F.struct(
        F.struct(at.alias("at"), F.lit(part).alias("part")).alias("place"),
        gone.alias("gone"),
        key.alias("key"),
        row.alias("row"),
        unchanged.alias("unchanged"),
        move.alias("move"),
    )


def _put_together(folded: Any) -> Any:
    """Rows with every value in the changes, including those under an earlier key."""
    records = folded.select("key", F.explode(F.expr(_RECORDS)).alias("record")).select(
        "key", "record.*"
    )
    moved = F.expr(
        "move IS NOT NULL OR exists(map_values(row), text -> startswith(text, chr(0)) AND "
        "length(text) > 1)"
    )
    # Related rows meet in one partition, moves in their order and before the rows.
    together = (
        records.withColumn("moved", moved)
        .repartition(F.when(F.col("moved"), F.lit("")).otherwise(F.col("key")))
        .sortWithinPartitions(F.col("moved").desc(), F.col("move").asc_nulls_last())
    )
    return together.mapInArrow(_resolver(), f"key string, row {_MAP}")


def _resolver() -> Any:
    """Fills in the values that moves carried; created here, so that workers don't need Headrace for
    it.
    """

    def resolved(batches: Any) -> Any:
        import pyarrow as pa  # noqa: PLC0415  # it runs in Spark's workers

        carried: dict[str, dict[str, str | None]] = {}

        def value(name: str, text: str | None) -> str | None:
            if text is None or len(text) < 2 or text[0] != "\0":  # NUL and a move
                return text
            return carried.get(text[1:], {}).get(name, "\0")

        for batch in batches:
            if not any(batch.column("moved").to_pylist()):
                yield batch.select(["key", "row"])
                continue
            keys = []
            rows = []
            for key, move, row in zip(
                *(batch.column(name).to_pylist() for name in ("key", "move", "row")), strict=True
            ):
                values = {name: value(name, text) for name, text in row}
                if move is None:
                    keys.append(key)
                    rows.append(list(values.items()))
                else:
                    carried[move] = values
            fields = [batch.schema.field(name) for name in ("key", "row")]
            arrays = [
                pa.array(made, field.type) for made, field in zip((keys, rows), fields, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    return resolved


_MOVES = f"array<struct<move:string,row:{_MAP}>>"
# NUL, which no text of PostgreSQL contains, marks a value that was not sent; NUL and a move mark
# the value that the row had when it moved to its current key.
_HAD = "CASE WHEN map_contains_key(state.row, name) THEN state.row[name] ELSE chr(0) END"
_FOLD = f"""
aggregate(
    history,
    struct(CAST(NULL AS {_MAP}) AS row, CAST(array() AS {_MOVES}) AS moves),
    (state, step) -> struct(
        CASE
            WHEN step.gone THEN CAST(NULL AS {_MAP})
            WHEN size(step.unchanged) = 0 THEN step.row
            ELSE map_concat(step.row, map_from_arrays(step.unchanged, transform(step.unchanged,
                name ->
                CASE WHEN step.move IS NOT NULL THEN concat(chr(0), step.move) ELSE {_HAD} END)))
        END AS row,
        CASE
            WHEN step.gone AND step.move IS NOT NULL THEN concat(state.moves, CAST(array(struct(
                step.move AS move,
                map_from_arrays(step.unchanged, transform(step.unchanged, name -> {_HAD})) AS row
            )) AS {_MOVES}))
            ELSE state.moves
        END AS moves
    )
)
"""
_RECORDS = f"""
concat(
    state.moves,
    CASE WHEN state.row IS NULL THEN CAST(array() AS {_MOVES})
    ELSE CAST(array(struct(CAST(NULL AS string) AS move, state.row AS row)) AS {_MOVES}) END
)
"""
