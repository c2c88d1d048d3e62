"""Changes of one table to one net change per key. Pure.

The rows of a batch are in commit order. For each key, two facts count: whether its row existed
before, which the first change shows, and the last version of it. A changed key is a deletion of the
old one and an insertion of the new one. Values that PostgreSQL did not send come from the row's
earlier change in the batch or, where there is none, from the lake's own row.

A table without a key has its whole rows as keys: equal rows are counted, since nothing else
distinguishes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute

from headrace.archive.payloads import members
from headrace.lake.columns import Column, Ints, places, taken, whole
from headrace.lake.errors import LakeError

# pyarrow's stubs lack calls that are used here.
pc: Any = pyarrow.compute
Exact = dict[str, str]
_INSERT = "insert"
_UPDATE = "update"
_DELETE = "delete"
_TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class Borrowed:
    """Values of a new row that only the lake's row has: unchanged TOASTed columns."""

    # The new row, by its place among the new rows.
    row: int
    columns: tuple[str, ...]
    # The key of the lake's row, by its place among the keys.
    key: int


@dataclass(slots=True)
class NetChanges:
    """The effect of a batch on a table."""

    # The rows from before the batch are gone.
    truncated: bool = False
    # The keys, as JSON, whose rows in the lake are replaced or gone.
    keys: list[str] = field(default_factory=list)
    # PostgreSQL's texts of values in the keys.
    exact_keys: list[Exact | None] | None = None
    # How many rows with that key are gone; None: the only one.
    counts: list[int] | None = None
    # New rows as JSON, and PostgreSQL's texts where JSON loses something.
    rows: Column = field(default_factory=lambda: pa.array([], pa.string()))
    exact: list[Exact | None] | None = None
    borrowed: list[Borrowed] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether nothing changes."""
        return not (self.truncated or self.keys or len(self.rows))


def fold(batch: pa.Table, key: Sequence[str]) -> NetChanges:
    """The net change of a table's archived rows, all of one schema version; `key` names its key's
    columns.
    """
    operations = batch.column("operation").cast(pa.string())
    # Only the last one counts: what came before it is gone with everything else.
    truncates = np.flatnonzero(_equal(operations, _TRUNCATE))
    truncated = len(truncates) > 0
    if truncated:
        batch = batch.slice(int(truncates[-1]) + 1)
        operations = operations.slice(int(truncates[-1]) + 1)
    net = _net(batch, operations, key)
    net.truncated = truncated
    return net


def _net(batch: pa.Table, operations: Column, key: Sequence[str]) -> NetChanges:
    if not key:
        return _fold_rows(batch, operations)
    keyed = _Keyed(batch, operations, key)
    # A deferrable key may be taken by two rows until the transaction ends. It needs
    # REPLICA IDENTITY FULL, which shows which of the two is meant.
    if keyed.moves_whole_rows:
        return _fold_rows(batch, operations)
    return keyed.net()


def _equal(operations: Column, wanted: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    found: np.ndarray[Any, np.dtype[np.bool_]] = pc.equal(operations, wanted).to_numpy(
        zero_copy_only=False
    )
    return found


@dataclass(slots=True)
class Moves:
    """Updates that changed the key."""

    # Their places in the batch, and the keys from before.
    updates: Ints
    old_keys: list[str]
    # Whether they show the whole row from before, which a deferrable key needs.
    whole_rows: bool


def moves_of(batch: pa.Table, key: Sequence[str]) -> Moves:
    """The updates in a batch that changed the key."""
    updates = _equal(batch.column("operation").cast(pa.string()), _UPDATE)
    # Most updates have no row from before: only those are looked at one by one.
    with_before = updates & batch.column("before").is_valid().to_numpy()
    moved = []
    old_keys = []
    whole_rows = False
    for place in np.flatnonzero(with_before).tolist():
        before = members(str(batch.column("before")[place].as_py()))
        old = _object({name: before[name] for name in key if name in before})
        if old != str(batch.column("key")[place].as_py()) and len(old) > 2:
            moved.append(place)
            old_keys.append(old)
            # More than the key is there only with REPLICA IDENTITY FULL.
            whole_rows |= len(before) > len(key)
    return Moves(np.array(moved, np.int64), old_keys, whole_rows)


class _Keyed:
    """The fold of a table with a key.

    A step is a new version of a row (a put) or its end. A change of the key is two steps of one
    change: the old key's end, and a put of the new one.
    """

    def __init__(self, batch: pa.Table, operations: Column, key: Sequence[str]) -> None:
        self._batch = batch
        self._key = key
        self._unchanged = batch.column("unchanged")
        self._is_delete = _equal(operations, _DELETE)
        self._is_insert = _equal(operations, _INSERT)
        moves = moves_of(batch, key)
        self.moves_whole_rows = moves.whole_rows
        moved = moves.updates
        old_keys = moves.old_keys
        size = batch.num_rows
        # The change of each step.
        # A changed key stands twice: its first step ends the old row, its second puts the new one.
        self._change = np.insert(np.arange(size), moved, moved)
        self._ends = self._is_delete[self._change]
        # Each earlier move has shifted the later ones by one place.
        ends_of_moves = moved + np.arange(len(moved))
        self._ends[ends_of_moves] = True
        # Whether a step shows that the key's row did not exist before it.
        self._creates = self._is_insert[self._change]
        # PostgreSQL's unique index proves it: an update to a key succeeds only if no row has it.
        self._creates[ends_of_moves + 1] = True
        keys = whole(batch.column("key"))
        place = self._change.copy()
        place[ends_of_moves] = size + np.arange(len(moved))
        every = keys
        if old_keys:
            every = pa.concat_arrays([keys, pa.array(old_keys, pa.string())]).take(places(place))
        if every.null_count:
            raise LakeError(
                "a change lacks its row's key",
                remedy="Give the table a primary key or REPLICA IDENTITY FULL, and copy it again.",
            )
        # Keys as numbers: the rest is array operations, without a Python object per change.
        encoded = every.dictionary_encode()
        self._codes: Ints = encoded.indices.to_numpy().astype(np.int64)
        self._texts = encoded.dictionary
        # Of each key, in order.
        # Stable, because within a key the order of commits has to remain.
        self._order = np.argsort(self._codes, kind="stable")
        self._rank = np.empty_like(self._order)
        self._rank[self._order] = np.arange(len(self._order))

    def net(self) -> NetChanges:
        count = len(self._texts)
        first = np.zeros(count, np.int64)
        last = np.zeros(count, np.int64)
        steps = np.arange(len(self._codes))
        # Of equal keys, the assignment that comes last stays.
        first[self._codes[::-1]] = steps[::-1]
        last[self._codes] = steps
        # A key whose first step creates its row has none in the lake, and needs no search.
        located = np.flatnonzero(~self._creates[first])
        # A row that came and went within the batch is never written.
        final = last[~self._ends[last]]
        # New rows in commit order, as they would be without folding.
        final.sort()
        changes = self._change[final]
        rows = whole(self._batch.column("after"))
        net = NetChanges(
            keys=self._texts.take(places(located)).to_pylist(),
            rows=taken(rows, changes),
            exact=_exact(taken(self._batch.column("exact"), changes), "after"),
        )
        # Only updates of rows with TOASTed values have any, so most batches end here.
        if self._unchanged.null_count < len(self._unchanged):
            self._complete(net, final, {int(code): at for at, code in enumerate(located)})
        return net

    def _complete(self, net: NetChanges, final: Ints, keys: Mapping[int, int]) -> None:
        """Find the values that PostgreSQL did not send."""
        texts = net.rows.to_pylist()
        exact = net.exact or [None] * len(texts)
        changed = False
        for row, step in enumerate(final.tolist()):
            missing = set(self._unchanged[self._change[step]].as_py() or ())
            if not missing:
                continue
            changed = True
            found, known, source = self._earlier(step, missing)
            texts[row] = _object({**members(texts[row]), **found})
            exact[row] = {**(exact[row] or {}), **known} or None
            if left := missing - found.keys():
                # The key that the row had in the lake, which may not be its present one.
                net.borrowed.append(Borrowed(row, tuple(sorted(left)), keys[source]))
        if changed:
            net.rows = pa.array(texts, pa.string())
            net.exact = exact if any(exact) else None

    def _earlier(self, step: int, missing: set[str]) -> tuple[dict[str, Any], Exact, int]:
        """The row's values in earlier changes of the batch, and the key that it had at first."""
        found: dict[str, Any] = {}
        known: Exact = {}
        while True:
            change = int(self._change[step])
            self._take(found, known, change, "before", missing)
            if step and self._change[step - 1] == change:
                # The row had another key before: continue there, with the step before its end.
                step -= 1
            rank = int(self._rank[step])
            before = int(self._order[rank - 1]) if rank else step
            if before == step or self._codes[before] != self._codes[step]:
                return found, known, int(self._codes[step])
            step = before
            self._take(found, known, int(self._change[step]), "after", missing)
            if missing <= found.keys():
                return found, known, int(self._codes[step])

    def _take(
        self, found: dict[str, Any], known: Exact, change: int, side: str, missing: set[str]
    ) -> None:
        text = self._batch.column(side)[change].as_py()
        if text is None:
            return
        exact = _sides(self._batch.column("exact")[change].as_py()).get(side, {})
        for name, value in members(text).items():
            # The search goes backwards, so the value found first is the newest one.
            if name in missing and name not in found:
                found[name] = value
                if name in exact:
                    known[name] = exact[name]


def _fold_rows(batch: pa.Table, operations: Column) -> NetChanges:
    """The net change of a table without a key."""
    if pc.all(pc.equal(operations, _INSERT)).as_py() is not False:
        return NetChanges(
            rows=whole(batch.column("after")), exact=_exact(batch.column("exact"), "after")
        )
    # The number of rows that come or go, by text: under REPLICA IDENTITY FULL, both sides are whole
    # rows with their columns in the table's order.
    numbers: dict[tuple[str, str], int] = {}
    columns = (batch.column(name).to_pylist() for name in ("before", "after", "exact"))
    for before, after, exact in zip(*columns, strict=True):
        sides = _sides(exact)
        if before is not None:
            gone = (before, _dumped(sides.get("before")))
            numbers[gone] = numbers.get(gone, 0) - 1
        if after is not None:
            come_row = after
            kept = None
            if before is not None:
                # `after` lacks values that did not change; the whole row before has them.
                come_row = _object({**members(before), **members(after)})
                kept = {**sides.get("before", {}), **sides.get("after", {})}
            come = (come_row, _dumped(_of_row(sides, kept)))
            numbers[come] = numbers.get(come, 0) + 1
    return _net_rows(numbers)


def _of_row(sides: dict[str, Exact], kept: Exact | None) -> Exact | None:
    return sides.get("after") if kept is None else kept


def _net_rows(numbers: Mapping[tuple[str, str], int]) -> NetChanges:
    gone = [(each, -number) for each, number in numbers.items() if number < 0]
    come = [each for each, number in numbers.items() for _ in range(number)]
    exact = [orjson.loads(known) if known else None for _, known in come]
    return NetChanges(
        keys=[text for (text, _), _ in gone],
        exact_keys=[orjson.loads(known) if known else None for (_, known), _ in gone],
        counts=[number for _, number in gone],
        rows=pa.array([text for text, _ in come], pa.string()),
        exact=exact if any(exact) else None,
    )


def _dumped(exact: Exact | None) -> str:
    if not exact:
        return ""
    return orjson.dumps(exact, option=orjson.OPT_SORT_KEYS).decode()


def _sides(text: str | None) -> dict[str, Exact]:
    found: dict[str, Exact] = orjson.loads(text) if text else {}
    return found


def _exact(column: Column, side: str) -> list[Exact | None] | None:
    """The exact texts of one side of each row; None if no row has any."""
    if column.null_count == len(column):
        return None
    return [_sides(text).get(side) for text in column.to_pylist()]


def _object(values: Mapping[str, Any]) -> str:
    return orjson.dumps(values).decode()
